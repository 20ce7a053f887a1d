"""Guest code that tries to reach what it was not given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, RunResult

Run = Callable[..., RunResult]
SECRET = "standfast-test-secret-5f2c"

PROBES: list[str] = [
    "open('{file}').read()",
    "open('{file}', 'w').write('x')",
    "with open('{file}') as f:\n    result = f.read()",
    "from pathlib import Path\nPath('{file}').read_text()",
    "from pathlib import Path\nPath('{file}').write_text('x')",
    "from pathlib import Path\nPath('{file}').unlink()",
    "from pathlib import Path\nPath('{file}').exists()",
    "from pathlib import Path\nlist(Path('/').iterdir())",
    "from pathlib import Path\nstr(Path('~').expanduser()) + str(Path.cwd()) + str(Path.home())",
    "import pathlib\npathlib.Path('{file}').open().read()",
    "import os\nos.environ['STANDFAST_TEST_SECRET']",
    "import os\nos.getenv('STANDFAST_TEST_SECRET')",
    "import os\ndict(os.environ)",
    "import os\nos.system('touch {file}.touched')",
    "import os\nos.listdir('/')",
    "import os\nos.popen('id').read()",
    "import os\nos.remove('{file}')",
    "import os\nos.kill(1, 0)",
    "import os\nos._exit(0)",
    "import sys\nsys.exit(3)",
    "exit()",
    "quit()",
    "raise SystemExit(1)",
    "import subprocess\nsubprocess.check_output(['id'])",
    "import socket\nsocket.create_connection(('127.0.0.1', 22))",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1')",
    "import ctypes\nctypes.string_at(0)",
    "import shutil\nshutil.rmtree('/tmp/x')",
    "import tempfile\ntempfile.mkdtemp()",
    "import threading\nthreading.enumerate()",
    "import multiprocessing",
    "import signal\nsignal.raise_signal(9)",
    "import gc\ngc.get_objects()",
    "import inspect\ninspect.stack()",
    "import sys\nsys.modules",
    "import sys\nsys.modules['os'].environ",
    "import sys\nsys._getframe()",
    "import builtins\nbuiltins.open('{file}').read()",
    "import importlib\nimportlib.import_module('os').environ",
    "import pickle\npickle.loads(b'cos\\nsystem\\n(S\"touch {file}.touched\"\\ntR.')",
    "import marshal",
    "import code",
    "import platform\nplatform.node()",
    "import getpass\ngetpass.getuser()",
    "import pydantic_monty",
    "import standfast",
    "__import__('os').environ",
    "__import__('os').system('touch {file}.touched')",
    "__builtins__",
    "__builtins__['open']('{file}').read()",
    "__loader__",
    "__spec__",
    "__file__",
    "globals()['__builtins__']",
    "vars()['__builtins__']",
    "().__class__.__bases__[0].__subclasses__()",
    "''.__class__.__mro__[1].__subclasses__()",
    "[c for c in object.__subclasses__()]",
    "type(type)('X', (object,), {{}})",
    "type('X', (), {{'__init__': lambda self: None}})().__class__.__base__",
    "(lambda: 0).__globals__",
    "(lambda: 0).__code__",
    "(lambda: 0).__code__.co_consts",
    "(lambda: 0).__closure__",
    "def f():\n    pass\nf.__globals__['__builtins__']",
    "def f():\n    pass\nf.__code__ = 1",
    "print.__self__",
    "len.__module__ + len.__self__.__dict__",
    "add.__globals__",
    "add.__self__",
    "add.__code__",
    "add.__wrapped__",
    "add.__dict__",
    "add.__module__",
    "add.__class__.__mro__",
    "add.__call__.__self__",
    "dir(add)",
    "add.registered",
    "getattr(add, '__glo' + 'bals__')",
    "getattr((), '__cl' + 'ass__').__bases__",
    "setattr(add, '__code__', 1)",
    "'{{0.__class__.__mro__}}'.format(1)",
    "'{{0.__globals__}}'.format(add)",
    "'{{x.__class__.__init__.__globals__}}'.format_map({{'x': add}})",
    "f'{{add.__globals__}}'",
    "try:\n    1 / 0\nexcept Exception as e:\n    result = e.__traceback__.tb_frame.f_globals",
    "try:\n    1 / 0\nexcept Exception as e:\n    result = str(e.__traceback__.tb_frame.f_back.f_locals)",
    "(i for i in [1]).gi_frame.f_back",
    "async def f():\n    pass\nf().cr_frame.f_back.f_globals",
    "eval('open(\"{file}\").read()')",
    "eval('__import__(\"os\").environ')",
    "exec('import os\\nresult = dict(os.environ)')",
    "exec('result = open(\"{file}\").read()')",
    "compile('1', 'x', 'eval')",
    "input()",
    "breakpoint()",
    "help()",
    "memoryview(b'x').obj",
    "__standfast_kept_result",
    "__standfast_probe",
    "validate_gate__()",
    "read_text('{file}')",
    "write_text('{file}', 'x')",
    "list_dir('/')",
    "fetch_text('http://127.0.0.1/')",
    "import asyncio\nasyncio.get_event_loop()",
    "import asyncio\nawait asyncio.create_subprocess_shell('touch {file}.touched')",
    "import asyncio\nawait asyncio.open_connection('127.0.0.1', 22)",
    "import json\njson.load(open('{file}'))",
    "import re\nre.sys.modules",
    "import json\njson.codecs.open('{file}').read()",
    "import random\nrandom._os.environ",
    "import collections\ncollections._sys.modules",
]


@pytest.fixture
def secret_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    os.environ["STANDFAST_TEST_SECRET"] = SECRET
    yield path
    del os.environ["STANDFAST_TEST_SECRET"]


@pytest.mark.parametrize("probe", PROBES, ids=[repr(row)[:70] for row in PROBES])
def test_guest_code_cannot_escape(run: Run, secret_file: Path, probe: str) -> None:
    """Ours: SPEC §11 and FACTS; 100 escape probes that all succeed in bare CPython."""
    result = run(probe.format(file=secret_file))
    shown = repr(result)
    assert SECRET not in shown.replace(str(secret_file), "")
    assert "Traceback" not in shown
    assert "site-packages" not in shown
    for word in ("subclasses", "_frozen_importlib", "f_globals"):
        assert word not in repr(result.result)
    assert secret_file.read_text() == SECRET
    assert not Path(f"{secret_file}.touched").exists()
    assert run("1 + 1").result == 2


def test_there_are_enough_probes() -> None:
    """Ours: the table must not shrink by accident."""
    assert len(PROBES) >= 100


@pytest.mark.parametrize(
    "code", ["open('/etc/passwd')", "from pathlib import Path\nPath('/etc/passwd').read_text()"]
)
def test_file_access_is_refused_with_a_permission_error_that_code_may_catch(run: Run, code: str) -> None:
    """Ours: the error is PERMISSION_DENIED, with a hint at what is granted instead."""
    failed = run(code)
    assert (failed.status, failed.error and failed.error.code) == ("permission_denied", "PERMISSION_DENIED")
    body = "".join(f"    {line}\n" for line in code.split("\n"))
    assert run(f"try:\n{body}except PermissionError:\n    result = 'caught'").result == "caught"


def test_the_guests_process_has_an_empty_environment(run: Run, box: BlockingSandbox) -> None:
    """Ours: SPEC §11; the sandbox runs in another process with an empty environment."""
    run("1")
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = {pid for path in children for pid in _read(path).split()}
    engines = [pid for pid in pids if "monty" in _read(Path(f"/proc/{pid}/cmdline"))]
    assert engines
    for pid in engines:
        assert Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0") == b""


def test_no_internal_names_remain_in_the_guests_namespace(run: Run) -> None:
    """Ours: temporary names of a run are removed."""
    run("x = 1\nresult = 5")
    run("if False:\n    result = 1\nx", inputs={"x": 2})
    run("range(3)")
    for name in ("__standfast_kept_x", "__standfast_kept_result", "__standfast_probe", "validate_gate__"):
        assert run(name).status == "runtime_error"
        assert run(f"{name}()").error.code == "UNKNOWN_TOOL"


def test_tools_are_values_that_hold_only_their_name(run: Run) -> None:
    """Ours: a stub in the guest has no way back to the function."""
    shown: Any = run("str(add) + repr(add)").result
    assert "conftest" not in shown
    assert "/work" not in shown


def _read(path: Path) -> str:
    """Return the contents of a file in /proc, or an empty value if it is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
