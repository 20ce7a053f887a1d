"""Hosts for tests: concurrent test suites do not collide, and a killed one does not block the others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from fleet import until
from hosts import Host, Network, hosts_missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(hosts_missing() is not None, reason=hosts_missing() or "")]

OTHER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from hosts import Host, Network
with Network() as network, Host(network) as host:
    print(network.name, host._holder.pid, flush=True)
    time.sleep(600)
"""


def _answers(host: Host, address: str) -> bool:
    ping = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"
    with socket.create_server((address, 0)) as server:
        words = [*host.inside, sys.executable, "-c", ping, address, str(server.getsockname()[1])]
        return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0


def test_networks_of_two_processes_do_not_collide_and_a_killed_network_is_cleaned_up() -> None:
    """Ours: several pytest workers, or two test suites, can run on one machine."""
    words = [sys.executable, "-c", OTHER, str(Path(__file__).parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        name, holder = other.stdout.readline().split()
        with Network() as network, Host(network) as host:
            assert network.name != name
            assert _answers(host, network.here)
        other.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{holder}").exists(), "the host outlives its process")
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        while network.name != name:  # other test suites may hold lower numbers by now
            network = stack.enter_context(Network())
        assert _answers(stack.enter_context(Host(network)), network.here)


def test_a_host_reaches_its_network_and_nothing_else() -> None:
    """Ours: Restate's server requests a release page at every start, and must not reach the internet."""
    with Network() as network, Host(network) as one, Host(network) as two:
        routes = subprocess.run([*one.inside, "ip", "route"], capture_output=True, text=True, check=True)
        assert len(routes.stdout.splitlines()) == 1
        assert "default" not in routes.stdout
        serve = [*two.inside, sys.executable, "-m", "http.server", "80", "--bind", two.address]
        with subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
            words = [*one.inside, sys.executable, "-c", ask, f"http://{two.address}/"]
            until(lambda: subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0)
            os.kill(server.pid, signal.SIGKILL)
