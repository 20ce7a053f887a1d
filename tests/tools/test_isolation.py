"""Tools in a separate process: any damage is confined to it."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import InvalidArgument, ToolError
from standfast.model.capability import Capability, ToolCallContext
from standfast.model.limits import CapabilityLimits
from standfast.tools import RegisteredTool, Tool, tool
from standfast.tools.registered_tool import CheckedArguments

pytestmark = pytest.mark.slow

_calls = 0


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class OwnError(Exception):
    """An exception type that is not built in."""


@tool(isolate=True)
def where() -> int:
    return os.getpid()


@tool(isolate=True)
def leave(status: int) -> None:
    os._exit(status)


@tool(isolate=True)
def crash() -> None:
    ctypes.string_at(0)


@tool(isolate=True)
def plant(value: str, nonce: str | None = None) -> str:
    """Write two answers to the host's pipe, with the nonce of this call if none is given."""
    frame: Any = sys._getframe()
    while frame is not None and "answers_fd" not in frame.f_locals:
        frame = frame.f_back
    if frame is not None and value:
        own = getattr(frame.f_locals["request"], "nonce", "")
        body = json.dumps({"nonce": own if nonce is None else nonce, "value": value}).encode()
        os.write(frame.f_locals["answers_fd"], (len(body).to_bytes(4, "big") + body) * 2)
    return f"true answer of {os.getpid()}"


@tool(isolate=True, limits=CapabilityLimits(timeout_ms=4000))
def hang(child_pid_file: str) -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(child_pid_file).write_text(str(child.pid))
    while True:
        time.sleep(60)


@tool(isolate=True)
def chatter(text: str) -> str:
    print(text)
    os.write(1, text.encode())
    os.system("echo from a shell")
    try:
        input()
    except EOFError:
        return "no input"
    return "input"


@tool(isolate=True)
def fail(kind: str) -> None:
    raise {
        "ValueError": ValueError("bad value"),
        "KeyError": KeyError("a key"),
        "FileNotFoundError": FileNotFoundError(2, "No such file", "x"),
        "OwnError": OwnError("mine"),
        "SystemExit": SystemExit(3),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "ToolError": ToolError("OUT_OF_STOCK", "none left", hint="order more"),
        "Surrogate": ValueError("\ud800"),
    }[kind]


@tool(isolate=True, limits=CapabilityLimits(max_response_bytes=1000))
def big(size: int) -> str:
    return "x" * size


@tool(isolate=True)
def move(point: Point, by: int = 1) -> Point:
    return Point(point.x + by, point.y)


@tool(isolate=True)
async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


@tool(isolate=True)
def not_json() -> Any:
    return {"f": float("nan")}


@tool(isolate=True)
def count() -> int:
    global _calls
    _calls += 1
    return _calls


@tool(isolate=True)
def meet(directory: str, mine: str, other: str) -> bool:
    Path(directory, mine).touch()
    until = time.monotonic() + 4
    while not Path(directory, other).exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def call(made: Tool[Any, Any], *args: Any, **kwargs: Any) -> Any:
    registered = made.registered
    bound = registered.bind(ToolCallContext(name=registered.name, args=list(args), kwargs=kwargs))
    return registered.handler(*bound.args, **bound.kwargs)


def code_of(made: Tool[Any, Any], *args: Any) -> tuple[str, str]:
    with pytest.raises(ToolError) as raised:
        call(made, *args)
    return str(raised.value.code), raised.value.message


def test_an_isolated_tool_runs_in_another_process_and_stays_warm() -> None:
    """Ours: `isolate` means another process, which later calls reuse."""
    first = call(where)
    assert first != os.getpid()
    assert call(where) == first


def test_module_globals_live_as_long_as_the_worker_and_never_reach_the_host() -> None:
    """Ours: a worker process is kept for later calls."""
    assert [call(count), call(count)] == [1, 2]
    assert _calls == 0


def test_a_tool_that_exits_becomes_a_tool_error_and_the_next_call_works() -> None:
    """Seed: a tool that exits becomes a typed failure."""
    assert code_of(leave, 3) == ("TOOL_ERROR", "leave() ended its process (exit status 3)")
    assert code_of(leave, 0) == ("TOOL_ERROR", "leave() ended its process (exit status 0)")


def test_a_segmentation_fault_names_its_signal() -> None:
    """Ours: a crash in C code ends only the worker."""
    assert code_of(crash) == ("TOOL_ERROR", "crash() ended its process (signal SIGSEGV)")


@pytest.mark.slow
def test_a_hanging_tool_is_killed_with_its_subprocesses(tmp_path: Path) -> None:
    """Seed: `timeout_ms` applies whatever the tool does."""
    noted = tmp_path / "pid"
    started = time.monotonic()
    code, message = code_of(hang, str(noted))
    assert (code, message) == ("TIMEOUT_TOOL", "hang() did not answer within 4000 ms")
    assert time.monotonic() - started < 5.3
    assert _is_gone(int(noted.read_text()))


def test_printing_does_not_disturb_the_protocol(capfd: pytest.CaptureFixture[str]) -> None:
    """Ours: a tool's standard output is not the pipe, and its standard input is empty."""
    assert call(chatter, "hello") == "no input"
    assert call(chatter, "again") == "no input"
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("hello") == 2
    assert "from a shell" in err


@pytest.mark.parametrize(
    ("kind", "type_", "message"),
    [
        ("ValueError", ValueError, "bad value"),
        ("KeyError", KeyError, "'a key'"),
        ("FileNotFoundError", FileNotFoundError, "[Errno 2] No such file: 'x'"),
        ("OwnError", RuntimeError, "OwnError: mine"),
        ("SystemExit", RuntimeError, "SystemExit: 3"),
        ("KeyboardInterrupt", RuntimeError, "KeyboardInterrupt"),
        ("Surrogate", ValueError, "?"),
    ],
)
def test_exceptions_are_raised_as_built_in_types(kind: str, type_: type[Exception], message: str) -> None:
    """Ours: guest code catches the same types as without isolation, and nothing is unpickled."""
    with pytest.raises(type_) as raised:
        call(fail, kind)
    assert type(raised.value) is type_
    assert str(raised.value) == message


def test_a_tool_error_keeps_its_code_and_hint() -> None:
    """Ours: the code that a tool's author chose survives the pipe."""
    with pytest.raises(ToolError) as raised:
        call(fail, "ToolError")
    error = raised.value
    assert (error.code, error.message, error.hint) == ("OUT_OF_STOCK", "none left", "order more")


def test_a_result_above_the_frame_limit_is_refused_unread() -> None:
    """Seed: a tool that returns 100 MB becomes a typed failure."""
    code, message = code_of(big, 10_000_000)
    assert code == "RESPONSE_TOO_LARGE"
    assert "the limit is 1000" in message
    assert call(big, 500) == "x" * 500


def test_a_request_larger_than_a_pipe_arrives() -> None:
    """Ours: writing to the pipe never deadlocks and never truncates."""
    assert call(chatter, "y" * 300_000) == "no input"


def test_values_are_converted_in_the_worker_and_results_encoded_there() -> None:
    """Ours: an isolated function accepts and returns the same types as any other."""
    assert call(move, {"x": 1, "y": 5}) == {"x": 2, "y": 5}
    assert call(move, point={"x": 1}, by=4) == {"x": 5, "y": 0}


def test_arguments_are_validated_before_a_process_is_started() -> None:
    """Ours: the host validates the contract too."""
    with pytest.raises(InvalidArgument, match="x"):
        move.registered.bind(ToolCallContext(name="move", args=[{"x": "one"}]))


def test_an_async_function_runs_in_the_worker() -> None:
    """Ours: an async function can be isolated; its handler is a plain function."""
    assert later.registered.async_mode is False
    assert call(later, 1) == 2


def test_a_result_that_is_not_json_is_a_serialize_error() -> None:
    """Seed: a result without a JSON form becomes a typed failure."""
    assert code_of(not_json)[0] == "SERIALIZE_ERROR"


def test_concurrent_calls_have_separate_processes(tmp_path: Path) -> None:
    """Ours: each concurrent call has its own worker process."""
    met: list[bool] = []
    other = threading.Thread(target=lambda: met.append(call(meet, str(tmp_path), "a", "b")))
    other.start()
    met.append(call(meet, str(tmp_path), "b", "a"))
    other.join()
    assert met == [True, True]


def test_an_answer_written_during_one_call_does_not_answer_another() -> None:
    """Bug: an unread answer was taken for that of the next call."""
    assert call(plant, "planted") == "planted", "a tool may answer its own call as it likes"
    assert call(plant, "").startswith("true answer")
    assert code_of(plant, "planted", "0" * 32) == ("TOOL_ERROR", "the worker of plant() broke its protocol")
    assert call(plant, "").startswith("true answer")


def test_an_idle_worker_that_died_is_replaced() -> None:
    """Ours: no call fails because its worker was killed between calls."""
    first = call(where)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert call(where) != first


def test_functions_that_another_process_cannot_import_are_refused_at_decoration() -> None:
    """Ours: invalid settings are rejected before the first call, with a hint."""

    def local() -> None: ...

    with pytest.raises(InvalidArgument, match="top level"):
        tool(isolate=True)(local)
    with pytest.raises(InvalidArgument, match="top level"):
        tool(isolate=True, name="short")(lambda: None)
    names: dict[str, Any] = {"__name__": "typed_in"}
    exec("def typed() -> None: ...", names)
    with pytest.raises(InvalidArgument, match="top level"):
        tool(isolate=True)(names["typed"])


SCRIPT = """
import sys
from dataclasses import dataclass
from standfast import tool, ToolCallContext
import beside

@dataclass
class Box:
    n: int

@tool(isolate=True)
def twice(box: Box) -> int:
    return box.n * beside.FACTOR

@tool(isolate=True)
def forever() -> None:
    import os, time
    print("pid", os.getpid(), flush=True)
    time.sleep(60)

def plain(n: int) -> int:
    return n + 1

wrapped = tool(isolate=True)(plain)

if __name__ == "__main__":
    def run(made, *args):
        bound = made.registered.bind(ToolCallContext(name=made.registered.name, args=list(args)))
        return made.registered.handler(*bound.args)
    if sys.argv[1:]:
        run(forever)
    print(run(twice, {"n": 21}), run(wrapped, 1))
"""


def _script(directory: Path) -> Path:
    (directory / "beside.py").write_text("FACTOR = 2\n")
    script = directory / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return script


def test_a_tool_defined_in_a_script_is_found_by_its_file(tmp_path: Path) -> None:
    """Ours: users define tools in scripts that they start by path, next to modules that they import."""
    script = _script(tmp_path)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=20, cwd="/", check=False
    )
    assert (done.stdout, done.stderr) == ("42 2\n", "")


def test_a_busy_worker_exits_when_its_host_is_killed(tmp_path: Path) -> None:
    """Ours: no worker outlives the host, not even one that hangs."""
    host = subprocess.Popen(
        [sys.executable, str(_script(tmp_path)), "forever"], stderr=subprocess.PIPE, text=True
    )
    assert host.stderr is not None
    with host.stderr:
        worker = int(host.stderr.readline().split()[1])
        host.kill()
        host.wait()
    assert _is_gone(worker)


def test_a_file_that_changed_since_registration_is_refused(tmp_path: Path) -> None:
    """Ours: an approval is for a contract, so another contract must not run under its name."""
    script = _script(tmp_path)
    names = _load(script)
    script.write_text(script.read_text().replace("box: Box)", "box: Box, extra: int = 1)"))
    sys.path.insert(0, str(tmp_path))
    try:
        code, message = code_of(names["twice"], {"n": 1})
    finally:
        sys.path.remove(str(tmp_path))
    assert code == "TOOL_ERROR"
    assert "has changed since it was registered" in message


def test_a_file_that_cannot_be_loaded_is_a_tool_error_with_the_cause(tmp_path: Path) -> None:
    """Ours: a failure to load says which file and why."""
    names = _load(_script(tmp_path))
    (tmp_path / "beside.py").unlink()
    code, message = code_of(names["twice"], {"n": 1})
    assert code == "TOOL_ERROR"
    assert "No module named 'beside'" in message


def test_binding_an_isolated_tool_passes_its_handler_the_context() -> None:
    """Ours: only JSON crosses the pipe, and rules still see arguments by name."""
    context = ToolCallContext(name="move", args=[{"x": 1}])
    bound = move.registered.bind(context)
    assert bound == CheckedArguments([context], {})
    assert move.registered.view(context) == ([{"x": 1}, 1], {"point": {"x": 1}, "by": 1})


def test_a_plain_registered_tool_is_not_isolated() -> None:
    """Ours: a tool runs isolated only on request."""
    made = RegisteredTool.sync(Capability(name="plain", description=""), lambda context: context.args)
    assert made.isolate is False


def _load(script: Path) -> dict[str, Any]:
    import importlib.util

    spec = importlib.util.spec_from_file_location(f"loaded_{script.parent.name}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(script.parent))
        sys.modules.pop("beside", None)
    return vars(module)


def _is_gone(pid: int) -> bool:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
