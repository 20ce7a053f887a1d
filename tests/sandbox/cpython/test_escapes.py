"""Guest code that tries to reach what it was not given. Nothing leaks, the host survives, and the next
run works.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast.errors import Code
from standfast.ports.code_engine import CallAnswer, CellEnd

pytestmark = pytest.mark.slow

Session = Callable[..., CellEnd]
SECRET = "standfast-test-secret-5f2c"

LIBC = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
PROBES: list[str] = [
    "open('{file}').read()",
    "open('{file}', 'w').write('x')",
    "open('{file}', 'a').write('x')",
    "import os\nos.unlink('{file}')",
    "import os\nos.rename('{file}', '{file}.touched')",
    "import os\nos.link('{file}', 'here')\nopen('here').read()",
    "import os\nos.symlink('{file}', 'here')\nopen('here').read()",
    "import os\nos.symlink('/', 'root')\nopen('root{file}').read()",
    "import os\nos.truncate('{file}', 0)",
    "import os\nos.chmod('{file}', 0o777)",
    "import os\nos.utime('{file}', (0, 0))",
    "import os\nos.chown('{file}', 1, 1)",
    "import os\nos.setxattr('{file}', 'user.x', b'x')",
    "import os\nos.mkdir('{file}.touched')",
    "import os\nos.mkfifo('{file}.touched')",
    "import os\nos.mknod('{file}.touched')",
    "import os\nfd = os.open('/', os.O_RDONLY)\nos.open('{file}'[1:], os.O_RDONLY, dir_fd=fd)",
    "import os\nos.chroot('.')",
    "import os\nos.listdir(os.path.dirname('{file}'))",
    "import shutil\nshutil.copy('{file}', 'here')\nopen('here').read()",
    "import os\nos.environ['STANDFAST_TEST_SECRET']",
    "import os\nos.getenv('STANDFAST_TEST_SECRET')",
    "open('/proc/self/environ').read()",
    "open('/proc/1/environ').read()",
    "import os\nopen(f'/proc/{{os.getppid()}}/environ').read()",
    "import os\nopen(f'/proc/{{os.getppid()}}/maps').read()",
    "import os\n[open(f'/proc/self/fd/{{n}}').read(9) for n in range(3, 9)]",
    "import os\nos.listdir('/proc')",
    LIBC + "ctypes.string_at(c.getenv(b'STANDFAST_TEST_SECRET') or b'')",
    "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0x')",
    "import socket\nsocket.socketpair()",
    "import socket\nsocket.socket(fileno=3).sendmsg([b'x'])",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')",
    "import http.client\nhttp.client.HTTPConnection('127.0.0.1', {port}).request('GET', '/')",
    "import asyncio\nawait asyncio.open_connection('127.0.0.1', {port})",
    "import asyncio\nawait asyncio.create_subprocess_shell('touch {file}.touched')",
    "import os\nos.system('touch {file}.touched') and 1 / 0",
    "import os\nos.popen('touch {file}.touched').read()",
    "import os\nos.posix_spawn('/bin/touch', ['touch', '{file}.touched'], {{}})",
    "import os\nos.execv('/bin/touch', ['touch', '{file}.touched'])",
    "import os\nos.fork()",
    "import subprocess\nsubprocess.run(['touch', '{file}.touched'])",
    "import multiprocessing as m\nm.get_context('fork').Process(target=print).start()",
    "import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()",
    "import pty\npty.fork()",
    "import os\nos.kill(1, 9)",
    "import os\nos.kill(os.getppid(), 9)",
    "import os\nos.killpg(0, 9)",
    "import os\nos.kill({pid}, 9)",
    "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
    "import os\nos.setpgid(0, 0)",
    "import os\nos.setsid()",
    "import os\nos.setuid(0)\n1 / 0",
    "import os\nos.nice(-5)",
    "import os\nos.sched_setaffinity({pid}, [0])",
    "import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    "import resource\nresource.prlimit({pid}, resource.RLIMIT_NOFILE, (3, 3))",
    "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "import mmap\nmmap.mmap(-1, 1 << 40)",
    "import os\nos.memfd_create('x')",
    "from multiprocessing import shared_memory\nshared_memory.SharedMemory(create=True, size=10)",
    *[
        LIBC + f"r = c.syscall({number}, 0, 0, 0, 0, 0)\nassert r >= 0, ctypes.get_errno()"
        for number in (41, 56, 57, 58, 59, 101, 165, 272, 308, 310, 317, 321, 322, 323, 425, 434, 435, 444)
    ],
    LIBC + "r = c.ptrace(16, {pid}, 0, 0)\nassert r >= 0",
    LIBC + "r = c.unshare(0x10000000)\nassert r >= 0",
    LIBC + "r = c.prctl(1, 0, 0, 0, 0)\nassert r >= 0",
    LIBC + "r = c.prctl(4, 0, 0, 0, 0)\nassert r >= 0",
    LIBC + "r = c.capset(bytes(8), bytes(24))\nassert r >= 0",
    "import standfast",
    "import pydantic_monty",
    "import msgspec",
    "import pip",
    "import sys\nsys.path.append('/usr/lib/python3/dist-packages')\nimport apt",
    "import site\nsite.getsitepackages()[0] and __import__('pytest')",
    "import getpass, os\nos.getlogin()",
    "import pwd\nopen(pwd.getpwuid(0).pw_dir + '/.bashrc').read()",
    "open('/etc/passwd').read()",
    "open('/etc/hostname').read()",
    "open('/dev/tty', 'w').write('x')",
    "open('/dev/mem', 'rb').read(1)",
    "import glob\nassert glob.glob('/home/*') + glob.glob('/root/*')",
    "open('/sys/kernel/uevent_helper', 'w')",
    "import os\nos.mkdir('/usr/lib/x')",
    "import os, sys\nopen(os.path.join(os.path.dirname(os.__file__), 'evil.py'), 'w')",
    "import sys\nopen(sys.executable, 'r+b')",
]  # fmt: skip


@pytest.fixture
def secret_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o644)
    os.environ["STANDFAST_TEST_SECRET"] = SECRET
    yield path
    del os.environ["STANDFAST_TEST_SECRET"]


@pytest.fixture(scope="module")
def listening() -> Iterator[socket.socket]:
    """Return a server that guest code might reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.sampled(8, each="jailed")
@pytest.mark.parametrize("probe", PROBES, ids=[repr(row)[:70] for row in PROBES])
def test_guest_code_cannot_escape(
    jail_session: Session, secret_file: Path, listening: socket.socket, probe: str
) -> None:
    """Ours: files, environment, network, processes, kernel and other packages; each probe must fail."""
    before = secret_file.stat()
    code = probe.format(file=secret_file, pid=os.getpid(), port=listening.getsockname()[1])
    end = jail_session(code)
    nothing = end.error is None and end.result in (None, "") and "getenv" in probe
    assert nothing or end.error is not None, end.result
    assert SECRET not in repr(end)
    after = secret_file.stat()
    assert secret_file.read_text() == SECRET
    assert (before.st_mode, before.st_uid, before.st_mtime_ns) == (
        after.st_mode,
        after.st_uid,
        after.st_mtime_ns,
    )
    assert sorted(path.name for path in secret_file.parent.iterdir()) == ["secret"]
    with pytest.raises(BlockingIOError):
        listening.accept()
    assert jail_session("1 + 1").result == 2


def test_a_fork_bomb_creates_no_process(jail_session: Session) -> None:
    """Seed: a fork bomb fails at its first attempt."""
    code = """
import os, subprocess, threading
made = 0
def bomb():
    global made
    for _ in range(200):
        for attempt in (os.fork, lambda: subprocess.Popen(['/bin/sh'])):
            try:
                attempt()
                made += 1
            except OSError:
                pass
threads = [threading.Thread(target=bomb) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
del threads, thread
made
"""
    assert jail_session(code).result == 0


def test_guest_code_sees_nothing_of_its_parent_process(jail_session: Session) -> None:
    """Ours: the guest has an empty environment, an empty directory and no arguments."""
    code = "import os, sys\n[dict(os.environ), os.listdir('.'), sys.argv, sys.stdin.read()]"
    assert jail_session(code).result == [{}, [], [""], ""]


def test_a_namespace_hides_the_machine(session: Session) -> None:
    """Seed: no host home, no /proc, user id 65534, no host name."""
    code = """
import os, platform
shown = {name for name in os.listdir('/')}
[os.getuid(), os.getpid(), platform.node(), sorted({'proc', 'sys', 'home', 'var', 'opt', 'work'} & shown)]
"""
    assert session(code).result == [65534, 2, "jail", []]


SEND = "import os\nfor n in range(3, 64):\n    try: os.write(n, {})\n    except OSError: pass"
TAMPERING: list[str] = [
    "import os\nos._exit(0)",
    "import os\nos._exit(7)",
    "import os\nos.abort()",
    "import ctypes\nctypes.string_at(0)",
    "import signal\nsignal.raise_signal(signal.SIGKILL)",
    "import os\n[os.close(n) for n in range(3, 64) if not os.isatty(n) or 1]",
    "import os\nos.closerange(0, 64)",
    SEND.format("b'\\xff' * 200"),
    SEND.format("b'\\0\\0\\0'"),
    *[
        SEND.format(f"len(m := {message}).to_bytes(4, 'big') + m")
        for message in (
            "b'{{}}'",
            "b'null'",
            "b'#'",
            "b'#\\xff\\xff\\xff\\xff'",
            "b'{\"t\":\"blocked\"}'",
            "b'{\"t\":\"ready\"}'",
            "b'{\"t\":\"ran\",\"peak\":-5}'",
            "b'{\"t\":\"ran\",\"peak\":1e3}'",
            "b'{\"t\":\"memory\"}'",
            "b'{\"t\":\"end\",\"result\":1e999}'",
            "b'{\"t\":\"end\",\"result\":[' + b'[' * 9000 + b']' * 9000 + b']}'",
            "b'{\"t\":\"end\",\"names\":[1]}'",
            "b'{\"t\":\"end\",\"error\":{\"kind\":\"X\",\"message\":\"m\",\"span\":[-1,0,-5,null]}}'",
            "b'{\"t\":\"call\",\"id\":-1,\"name\":\"add\",\"later\":true,\"args\":{},\"kwargs\":[]}'",
            "b'{\"t\":\"call\",\"id\":1,\"name\":\"no\",\"later\":false,\"args\":[],\"kwargs\":{}}'",
            "b'{\"t\":\"load\",\"name\":\"x\"}'",
            "b'{\"t\":\"out\",\"stream\":\"stdin\",\"text\":\"\"}'",
        )
    ],
    "import sys\nsys.modules['standfast_guest.session'].GuestSession._pack = None",
    "import sys\nsys.modules['standfast_guest.channel'].HostChannel.post = lambda *a: None\nadd(1)",
    "import sys\nsys.modules['standfast_guest.channel'].encode = lambda v: '\\ud800'\nadd(1)",
    "import sys\nsys.modules['standfast_guest.packing'].pack = lambda *a: (b'x' * 10, [1], 'no', None)",
    "import sys\nsys.modules['standfast_guest.packing'].pack = lambda *a: (b'evil', ['x'] * 9, True, [])",
    "import gc\n[o for o in gc.get_objects() if type(o).__name__ == 'GuestSession'][0].__dict__.clear()",
    "import builtins\nbuiltins.len = builtins.isinstance = None",
    "import sys\nsys.modules.clear()",
    "import sys\nsys.setrecursionlimit(10**8)\nclass A:\n    def __eq__(s, o): return s == o\nA() == A()",
    "import gc, sys\nfor o in gc.get_objects():\n    if isinstance(o, dict) and '_names' in o: o.clear()",
    "import threading, sys\nthreading.Thread(target=lambda: sys.stdout.write('x\\n' * 10**5)).start()",
    "import threading\nthreading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()\n1",
    "import faulthandler\nfaulthandler._stack_overflow()",
    "class J(dict):\n    def items(self): raise SystemExit('json')\nJ(a=1)",
    "class R:\n    def __reduce__(self): raise KeyboardInterrupt\nr = R()",
    "class R:\n    def __reduce__(self): return (exec, ('add(1)',))\nr = R()",
    "class R:\n    def __reduce__(self): return (__import__('os')._exit, (3,))\nr = R()",
    "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E",
    "class E(Exception):\n    args = property(lambda s: 1 / 0)\nraise E('x')",
    "class E(BaseException): pass\nE.__name__ = 'x' * 10**6\nraise E('y' * 10**7)",
    "import asyncio\nasyncio.get_event_loop_policy().new_event_loop = None\nawait add(1)",
    "import atexit\natexit.register(lambda: 1 / 0)\nraise SystemExit",
]  # fmt: skip


@pytest.mark.sampled(4, each="jailed")
@pytest.mark.parametrize("code", TAMPERING, ids=[repr(row)[:70] for row in TAMPERING])
def test_tampering_with_its_own_process_does_not_harm_the_host(jail_session: Session, code: str) -> None:
    """Ours: the host does not trust the runner inside the guest, and keeps running."""
    end = jail_session(
        code, answer_now=lambda call: CallAnswer(value=1), limits={"cpu_ms": 700, "wall_ms": 800}
    )
    assert end.error is None or end.error.code in set(Code)
    jail_session.state = b""  # type: ignore[attr-defined]
    assert jail_session("x = 20\nx + 22").result == 42
