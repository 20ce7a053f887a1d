"""Real Restate servers, each on its own host, which reaches its network and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from fleet import WITH_PARENT, until
from hosts import Host, Network, hosts_missing

SERVER = Path(sys.prefix) / "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"


def missing() -> str | None:
    """Return why Restate cannot run here; None if it can."""
    if not SERVER.is_file():
        return "restate-server is not installed; `make setup` installs it"
    return hosts_missing()


class RestateNode(Host):
    """A host with a Restate server."""

    def __init__(self, network: Network, home: Path) -> None:
        super().__init__(network)
        self._home = home
        self.admin, self.ingress = f"http://{self.address}:9070", f"http://{self.address}:8080"
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, nodes: list[RestateNode]) -> None:
        """Start the server as one of *nodes*, with its existing data. The first node creates the cluster."""
        replicas = len(nodes) // 2 + 1
        env = {
            "RESTATE_BASE_DIR": str(self._home / self.name),
            "RESTATE_CLUSTER_NAME": self.network.name,
            "RESTATE_NODE_NAME": self.name,
            "RESTATE_AUTO_PROVISION": str(self is nodes[0]).lower(),
            "RESTATE_DEFAULT_REPLICATION": str(replicas),
            "RESTATE_METADATA_CLIENT__ADDRESSES": json.dumps([f"http://{one.address}:5122" for one in nodes]),
            "RESTATE_DEFAULT_NUM_PARTITIONS": "4",
            "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "256MB",
            "RESTATE_ADVERTISED_ADDRESS": f"http://{self.address}:5122",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_WORKER__INVOKER__HTTP2_KEEP_ALIVE_INTERVAL": "2s",
            "RESTATE_WORKER__INVOKER__HTTP2_KEEP_ALIVE_TIMEOUT": "3s",
        }
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                [*WITH_PARENT, *self.inside, str(SERVER), "--no-logo"],
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
            )

    @property
    def log(self) -> Path:
        return self._home / f"{self.name}.log"

    def wait_started(self) -> None:
        until(lambda: self._answers(f"{self.admin}/health"), "restate-server does not answer")
        until(lambda: self._answers(f"{self.ingress}/restate/health"), "the ingress does not answer")

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait(timeout=10)
            self._server = None

    def _answers(self, url: str) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, self.log.read_text()[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        super().__exit__(kind, error, trace)


class Restate:
    """A cluster of Restate servers on a network, each with every role. `here` is this machine's address."""

    def __init__(self, network: Network, home: Path, nodes: int = 1) -> None:
        self.here = network.here
        self._stack = contextlib.ExitStack()
        self.nodes = [RestateNode(network, home) for _ in range(nodes)]

    def __enter__(self) -> Restate:
        with self._stack:
            for node in self.nodes:
                self._stack.enter_context(node)
            for node in self.nodes:
                node.start(self.nodes)
            for node in self.nodes:
                node.wait_started()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def admin(self) -> str:
        return ",".join(node.admin for node in self.nodes)

    @property
    def ingress(self) -> str:
        return ",".join(node.ingress for node in self.nodes)

    def restart(self, number: int = 0) -> None:
        """Kill a server and start it again."""
        self.nodes[number].kill()
        self.nodes[number].start(self.nodes)
        self.nodes[number].wait_started()

    def call(
        self,
        session: str,
        handler: str,
        body: Any = None,
        *,
        key: str = "",
        send: bool = False,
        node: int = 0,
    ) -> tuple[int, Any]:
        """Call a session's handler through the ingress; return the status and the decoded JSON response."""
        headers = {"idempotency-key": key} if key else {}
        if body is not None:
            headers["content-type"] = "application/json"
        url = f"{self.nodes[node].ingress}/standfast_session/{session}/{handler}{'/send' if send else ''}"
        data = None if body is None else json.dumps(body).encode()
        return ask(urllib.request.Request(url, data, headers, method="POST"))

    def ask_admin(self, path: str) -> Any:
        return ask(urllib.request.Request(f"{self.nodes[0].admin}{path}"))[1]


def ask(request: urllib.request.Request) -> tuple[int, Any]:
    """Send a request; return the status and the decoded JSON response."""
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
