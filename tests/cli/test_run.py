"""`standfast run` and `standfast validate`."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_the_value_of_the_last_expression_is_the_result(standfast: Any) -> None:
    """Seed: the first example of the command line works."""
    ran = standfast("run", "-e", "sum(range(10))", "--json")
    assert (ran.status, ran.document["status"], ran.document["result"]) == (0, "ok", 45)


def test_the_document_has_exactly_the_fields_of_a_run_result(standfast: Any) -> None:
    """Seed: `run --json` prints exactly a RunResult."""
    assert set(standfast("run", "-e", "1", "--json").document) == {
        "status", "result", "stdout", "stderr", "diagnostics",
        "external_calls", "snapshot_id", "metrics", "error",
    }  # fmt: skip


@pytest.mark.slow
def test_a_session_outlives_the_process(process: Any) -> None:
    """Seed: state is kept between processes, and a later run without a result has none."""
    assert process("run", "-e", 'cache = {"k": 1}', "--json").document["result"] is None
    assert process("run", "-e", 'cache["k"] + 1', "--json").document["result"] == 2
    assert process("run", "-e", "unused = 3", "--json").document["result"] is None


def test_sessions_do_not_share_variables(standfast: Any) -> None:
    """Ours: --session-id selects the variables."""
    standfast("run", "-e", "x = 1", "--session-id", "a")
    assert standfast("run", "-e", "x", "--session-id", "b", "--json").document["status"] != "ok"


def test_code_can_be_read_from_a_file_or_standard_input(standfast: Any, tmp_path: Path) -> None:
    """Seed: code is given by -e, -f or -."""
    file = tmp_path / "code.py"
    file.write_text("\ufeffresult = 7\n", encoding="utf-8")
    assert standfast("run", "-f", str(file), "--json").document["result"] == 7
    assert standfast("run", "-", "--json", stdin="6 * 7").document["result"] == 42


def test_inputs_limits_and_timeout_apply_to_the_run(standfast: Any) -> None:
    """Seed: inputs are variables, and limits apply to the run."""
    assert standfast("run", "-e", "a + b", "--inputs", '{"a": 1, "b": 2}', "--json").document["result"] == 3
    late = standfast("run", "-e", "while True: pass", "--timeout-ms", "100", "--json")
    assert (late.status, late.document["error"]["code"]) == (1, "TIMEOUT_WALL")
    slow = standfast("run", "-e", "while True: pass", "--limits", '{"cpu_ms": 50}', "--json")
    assert (slow.status, slow.document["status"]) == (1, "timeout")


def test_a_snapshot_is_stored_on_request(standfast: Any) -> None:
    """Seed: --snapshot returns an id that can be restored."""
    name = standfast("run", "-e", "x = 5", "--snapshot", "--json").document["snapshot_id"]
    assert standfast("sessions", "restore", name, "--session-id", "copy").status == 0
    assert standfast("run", "-e", "x", "--session-id", "copy", "--json").document["result"] == 5


def test_a_mount_is_readable_but_writable_only_with_rw(standfast: Any, tmp_path: Path) -> None:
    """Seed: `--mount /virt=dir[:rw]` mounts a directory."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("hello")
    read = standfast("run", "-e", 'read_text("/d/a.txt")', "--mount", f"/d={tmp_path / 'd'}", "--json")
    assert read.document["result"] == "hello"
    write = ("run", "-e", 'write_text("/d/b.txt", "x")', "--json", "--mount")
    assert standfast(*write, f"/d={tmp_path / 'd'}").status == 1
    assert standfast(*write, f"/d={tmp_path / 'd'}:rw").status == 0
    assert (tmp_path / "d" / "b.txt").read_text() == "x"


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "-e", "1", "-f", "x.py"),
        ("run", "somefile.py"),
        ("run", "-f", "/does/not/exist.py"),
        ("run", "-e", "1", "--inputs", "{"),
        ("run", "-e", "1", "--inputs", "[1]"),
        ("run", "-e", "1", "--inputs", '{"x": NaN}'),
        ("run", "-e", "1", "--limits", "no"),
        ("run", "-e", "1", "--timeout-ms", "0"),
        ("run", "-e", "1", "--mount", "data"),
        ("run", "-e", "1", "--mount", "/d=/does/not/exist"),
        ("run", "-e", "1", "--tools", "/does/not/exist.py"),
        ("run", "-e", "1", "--no-such-option"),
        ("no-such-command",),
        ("approvals", "approve"),
        ("approvals", "approve", "apr_1", "--args", "3"),
        ("sessions", "restore", "/does/not/exist"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(standfast: Any, words: tuple[str, ...]) -> None:
    """Seed: the exit status 2 means wrong usage. Ours: with --json it is one document, too."""
    plain = standfast(*words)
    assert (plain.status, plain.stdout) == (2, "")
    assert "Error: " in plain.stderr
    as_json = standfast(*words, "--json")
    assert (as_json.status, as_json.document["error"]["code"]) == (2, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import does_not_exist_anywhere", "does_not_exist_anywhere"),
        ("x = 1\n1 / 0", "line 2"),
        ("raise SystemExit(3)", "SystemExit"),
        ("x = 1", "defines no tools"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_an_unusable_tools_file_is_a_usage_error(
    standfast: Any, tmp_path: Path, text: str, words: str
) -> None:
    """Ours: the message names the file and the reason, without a traceback."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    ran = standfast("run", "-e", "1", "--tools", str(file))
    assert ran.status == 2
    assert words in ran.stderr
    assert str(file) in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_invalid_session_id_is_a_validation_error(standfast: Any) -> None:
    """Ours: where the API returns a result, so does the command."""
    ran = standfast("run", "-e", "1", "--session-id", "../up", "--json")
    assert (ran.status, ran.document["status"]) == (1, "validation_error")
    assert ran.document["error"]["code"] == "INVALID_SESSION_ID"


def test_a_data_directory_that_cannot_be_created_yields_a_result_too(standfast: Any, tmp_path: Path) -> None:
    """Ours: run --json prints a RunResult whatever went wrong."""
    (tmp_path / "file").touch()
    ran = standfast("run", "-e", "1", "--data-dir", str(tmp_path / "file" / "below"), "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "NOT_CONFIGURED")


def test_output_of_tools_does_not_corrupt_the_document(process: Any, tmp_path: Path) -> None:
    """Ours: --json is one document on standard output, whatever a tool or its children print."""
    file = tmp_path / "noisy.py"
    file.write_text(
        "import os\nfrom standfast import tool\nprint('loading')\n"
        "@tool\ndef shout() -> int:\n    'Make noise.'\n    print('loud')\n"
        "    os.system('echo louder')\n    return 1\n"
    )
    ran = process("run", "-e", "shout()", "--tools", str(file), "--json")
    assert ran.document["result"] == 1
    assert {"loading", "loud", "louder"} <= set(ran.stderr.split())


def test_the_text_output_shows_output_value_and_error_position(standfast: Any) -> None:
    """Ours: stdout has what belongs in a file, stderr the rest, and errors have a caret."""
    good = standfast("run", "-e", 'print("hi")\n{"a": 1}')
    assert good.stdout == 'hi\n{\n  "a": 1\n}\n'
    assert "ok" in good.stderr
    bad = standfast("run", "-e", "x = 1\ny = x / 0")
    assert (bad.status, bad.stdout) == (1, "")
    assert "ZeroDivisionError" in bad.stderr
    assert "2 | y = x / 0\n          ^^^^^" in bad.stderr


def test_validate_reports_everything_and_runs_nothing(standfast: Any) -> None:
    """Seed: `open` is reported before anything runs."""
    ran = standfast("validate", "-e", "marker = 1\nopen('/etc/passwd')\nnope()", "--json")
    assert (ran.status, ran.document["status"]) == (1, "validation_error")
    assert [item["span"]["line"] for item in ran.document["diagnostics"]] == [2, 3]
    assert standfast("run", "-e", "marker", "--json").document["status"] != "ok"
    assert standfast("validate", "-e", "1 + 1", "--json").status == 0


def test_validate_knows_the_granted_tools(standfast: Any, refunds: str) -> None:
    """Ours: --tools means the same for validate as for run."""
    assert standfast("validate", "-e", "fee()", "--tools", refunds).status == 0
    assert standfast("validate", "-e", "fee()").status == 1


def _wait_for_worker(pid: int) -> None:
    """Wait until the process has started a worker, and then until the guest loops in it."""
    deadline = time.monotonic() + 30
    while not any(task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)


@pytest.mark.slow
def test_an_interrupt_cancels_the_run(
    start: Callable[..., subprocess.Popen[str]], standfast: Any, home: Path
) -> None:
    """Ours: Ctrl-C ends the run with the status cancelled, and the session is as before."""
    standfast("run", "-e", "x = 1")
    limits = '{"cpu_ms": 60000, "wall_ms": 60000}'
    running = start("run", "-e", "x = 2\nwhile True: pass", "--limits", limits, "--json")
    _wait_for_worker(running.pid)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=10)
    import json

    document = json.loads(stdout)
    assert (running.returncode, document["status"]) == (1, "cancelled")
    assert "Traceback" not in stderr
    assert standfast("run", "-e", "x", "--json").document["result"] == 1


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_early_causes_no_error(home: Path) -> None:
    """Ours: `standfast … | head` prints no error."""
    import sys

    line = f"{sys.executable} -m standfast.cli.main run -e 'print(\"x\\n\" * 20000)' | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30)
    assert done.stdout == "x\n"
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr


def test_starting_the_command_imports_neither_rich_nor_the_runtime() -> None:
    """Ours: --help and --version are fast; --json never loads rich, nor a run the events of agents."""
    import sys

    code = (
        "import sys, standfast.cli.main\n"
        "print(sorted(m for m in ('rich', 'asyncio', 'msgspec', 'standfast.runtime') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n"
    code = (
        "import sys\nfrom standfast.cli.main import main\n"
        "try:\n    main(['run', '-e', '1', '--json'])\nfinally:\n"
        "    print(sorted(m for m in ('rich', 'standfast.model.events') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.endswith("[]\n")
