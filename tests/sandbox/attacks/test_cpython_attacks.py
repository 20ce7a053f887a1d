"""Attacks on full CPython, in each kind of jail. Nothing leaks, the host survives, and the next run works."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

import gc
import os
import time
import wave
from pathlib import Path
from typing import Any

import pytest

from standfast.sandbox.workers import PeakMemory

pytestmark = pytest.mark.slow

Target = Any
Outside = Any

C = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
ASM = "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write({})\nctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\n"
CALLED = "r >= 0 and 'allowed'"
"""Whether a system call had any effect; its number may be refused or unknown."""

ESCAPES: list[tuple[str, str]] = [
    # files
    ("absolute path", "open('{file}').read()"),
    ("relative path", "open('../' * 30 + '{file}').read()"),
    ("through a link to the root", "import os\nos.symlink('/', 'r')\nopen('r{file}').read()"),
    ("through a link to the file", "import os\nos.symlink('{file}', 's')\nopen('s').read()"),
    ("through a link in a link", "import os\nos.symlink('{folder}', 'd')\nos.symlink('d/secret', 'e')\nopen('e').read()"),
    ("through a link to a descriptor", "import os\nos.symlink('/proc/self/fd/3', 'p')\nos.read(os.open('p', os.O_RDWR), 9)"),
    ("hard link", "import os\nos.link('{file}', 'h')\nopen('h').read()"),
    ("hard link by descriptor", C + "import os\nf = os.open('{file}', 0o10000000)\nr = c.linkat(f, b'', -100, b'l', 0x1000)\nopen('l').read()"),
    ("reopened path descriptor", "import os\nf = os.open('{file}', 0o10000000)\nopen(f'/proc/self/fd/{{f}}').read()"),
    ("path descriptor read", "import os\nf = os.open('{file}', 0o10000000)\nos.read(f, 9)"),
    ("directory descriptor", "import os\nf = os.open('{folder}', 0o10000000)\nos.read(os.open('secret', 0, dir_fd=f), 99)"),
    ("working directory", "import os\nos.chdir('{folder}')\nopen('secret').read()"),
    ("rename away", "import os\nos.rename('{file}', 'x')"),
    ("rename over", "import os\nopen('x', 'w').close()\nos.replace('x', '{file}')"),
    ("unlink", "import os\nos.unlink('{file}')"),
    ("truncate", "import os\nos.truncate('{file}', 0)"),
    ("mode", "import os\nos.chmod('{file}', 0o777)"),
    ("mode change by directory descriptor", "import os\nos.chmod('secret', 0o777, dir_fd=os.open('{folder}', 0o10000000))"),
    ("times", "import os\nos.utime('{file}', (0, 0))"),
    ("owner", "import os\nos.chown('{file}', 1, 1)"),
    ("attribute", "import os\nos.setxattr('{file}', 'user.x', b'x')"),
    ("fifo", "import os\nos.mkfifo('{folder}/f')"),
    ("device", "import os\nos.mknod('m', 0o20666, os.makedev(1, 1))\nopen('m', 'rb').read(9)"),
    ("block device", "import os\nos.mknod('m', 0o60666, os.makedev(254, 0))\nopen('m', 'rb').read(9)"),
    ("unnamed file elsewhere", "import os\nos.open('{folder}', os.O_TMPFILE | os.O_RDWR)"),
    ("in-memory file", "import os\nos.memfd_create('x')"),
    ("file handle", C + "h = (ctypes.c_uint * 40)(128)\nr = c.name_to_handle_at(-100, b'{file}', h, (ctypes.c_int * 2)(), 0)\n" + CALLED),
    ("listing", "import os\nos.listdir('{folder}')"),
    ("password file", "open('/etc/passwd').read()"),
    ("shadow file", "open('/etc/shadow').read()"),
    ("home", "import os\nos.listdir(os.path.expanduser('~root'))"),
    ("keys", "import glob\nglob.glob('/root/.ssh/*') + glob.glob('/home/*/.ssh/*')"),
    ("the host's packages", "import importlib\nimportlib.import_module('standfast')"),
    ("the host's program", "import glob, sys\n[p for p in glob.glob('/work/*') + glob.glob('/home/*') + glob.glob('/srv/*')]"),
    ("writing the library", "import os\nopen(os.__file__, 'r+b')"),
    ("writing bytecode", "import os\nopen(os.path.dirname(os.__file__) + '/__pycache__/os.cpython-311.pyc', 'r+b')"),
    ("writing the guest's program", "import sys\nopen(sys.modules['standfast_guest.session'].__file__, 'r+b')"),
    ("secrets in the guest's arguments", "import sys\nstr(sys.argv[1:]) + str(sys.orig_argv[1:]) if sys.argv[1:] or sys.orig_argv[1:] else ''"),
    # /proc, /sys, /dev
    *[(f"/proc {what}", f"open('/proc/{what}', 'rb').read(4096)") for what in
      ("self/environ", "self/maps", "self/mem", "self/cmdline", "self/mountinfo", "1/environ", "1/cmdline", "{pid}/environ",
       "{pid}/maps", "{pid}/cmdline", "{pid}/mem", "version", "kcore", "kallsyms", "net/tcp", "sys/kernel/hostname", "cmdline")],
    ("/proc of the parent", "import os\nopen(f'/proc/{{os.getppid()}}/environ', 'rb').read()"),
    ("/proc descriptors of the host", "import os\nos.listdir('/proc/{pid}/fd')"),
    ("/proc root of the host", "open('/proc/{pid}/root{file}').read()"),
    ("/proc work directory of the host", "import os\nos.listdir('/proc/{pid}/cwd')"),
    ("/proc program of the host", "import os\nos.readlink('/proc/{pid}/exe')"),
    ("/proc switches", "open('/proc/sys/kernel/core_pattern', 'w')"),
    ("/proc out-of-memory score", "open('/proc/{pid}/oom_score_adj', 'w').write('1000')"),
    ("/sys", "import os\nos.listdir('/sys/class/net')"),
    ("/sys control groups", "open('/sys/fs/cgroup/cgroup.procs').read()"),
    ("/dev/mem", "open('/dev/mem', 'rb').read(9)"),
    ("/dev/kmsg", "open('/dev/kmsg', 'w').write('x')"),
    ("/dev/tty", "open('/dev/tty', 'w').write('x')"),
    ("/dev/fuse", "open('/dev/fuse', 'r+b')"),
    ("/dev/shm", "open('/dev/shm/standfast-attack', 'w')"),
    ("/dev/pts", "import os\nos.openpty()"),
    # environment
    ("variable", "import os\nos.environ.get('STANDFAST_TEST_SECRET')"),
    ("variables", "import os\ndict(os.environ)"),
    ("variable of the C library", C + "c.getenv.restype = ctypes.c_char_p\nc.getenv(b'STANDFAST_TEST_SECRET')"),
    ("variables in memory", C + "ctypes.POINTER(ctypes.c_char_p).in_dll(c, 'environ')[0] and b'SECRET' in ctypes.POINTER(ctypes.c_char_p).in_dll(c, 'environ')[0]"),
    # network
    ("tcp", "import socket\nsocket.create_connection(('127.0.0.1', {port}))"),
    ("TCP through the C library", C + "r = c.socket(2, 1, 0)\n" + CALLED),
    ("TCP over IPv6", "import socket\nsocket.create_connection(('::1', {port}))"),
    ("udp", "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))"),
    ("unix", "import socket\nsocket.socket(socket.AF_UNIX).connect('{folder}/unix')"),
    ("abstract", "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{abstract}')"),
    ("netlink", "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    ("packets", "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    ("vsock", "import socket\nsocket.socket(40, socket.SOCK_STREAM)"),
    ("kernel crypto", "import socket\nsocket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"),
    ("names", "import socket\nsocket.getaddrinfo('example.org', 80)"),
    ("listening", "import socket\nsocket.create_server(('127.0.0.1', 0))"),
    ("the guest's own socket", "import socket\n[socket.socket(fileno=n).getpeername() for n in range(3, 9)]"),
    ("sending descriptors over the guest's socket", "import array, socket\nsocket.socket(fileno=3).sendmsg([b'x'], [(1, 1, array.array('i', [0]))])"),
    ("receiving descriptors from the guest's socket", "import socket\nsocket.socket(fileno=3).recvmsg(1, 99)"),
    ("http", "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')"),
    ("mail", "import smtplib\nsmtplib.SMTP('127.0.0.1', {port})"),
    ("asyncio", "import asyncio\nawait asyncio.open_connection('127.0.0.1', {port})"),
    # processes
    ("fork", "import os\nos.fork()"),
    ("vfork", C + "r = c.syscall(58)\n" + CALLED),
    ("clone", C + "r = c.syscall(56, 17, 0, 0, 0, 0)\n" + CALLED),
    ("clone that shares memory", C + "r = c.syscall(56, 0x4111, 0, 0, 0, 0)\n" + CALLED),
    ("clone of a thread in a namespace", C + "r = c.syscall(56, 0x10010f00, 0, 0, 0, 0)\n" + CALLED),
    ("clone3", C + "r = c.syscall(435, (ctypes.c_uint64 * 11)(), 88)\n" + CALLED),
    ("exec", "import os\nos.execv('/bin/sh', ['sh', '-c', 'touch {folder}/x'])"),
    ("exec of python", "import os, sys\nos.execv(sys.executable, ['python', '-c', '1'])"),
    ("exec of a descriptor", C + "import os, sys\nf = os.open(sys.executable, 0)\nr = c.syscall(322, f, b'', 0, 0, 0x1000)\n" + CALLED),
    ("exec through the loader", "import os\nos.execv('/lib64/ld-linux-x86-64.so.2', ['ld', '/bin/sh'])"),
    ("spawn", "import os\nos.posix_spawn('/bin/touch', ['touch', '{folder}/x'], {{}})"),
    ("shell", "import os\nos.system('touch {folder}/x') and ''"),
    ("subprocess", "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'touch {folder}/x'])"),
    ("multiprocessing fork", "import multiprocessing as m\nm.get_context('fork').Process(target=print).start()"),
    ("multiprocessing spawn", "import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()"),
    ("pool", "import concurrent.futures as f\nf.ProcessPoolExecutor(1).submit(print).result()"),
    ("signal to the host", "import os\nos.kill({pid}, 0)"),
    ("signal to process 1", "import os\nos.kill(1, 9)"),
    ("signal to the supervisor", "import os\nos.kill(os.getppid(), 9)"),
    ("signal to all processes", "import os\nos.kill(-1, 9)"),
    ("signal to the process group", "import os\nos.killpg(0, 9)"),
    ("signal to a thread", C + "r = c.syscall(200, {pid}, 0)\n" + CALLED),
    ("queued signal", C + "r = c.syscall(129, {pid}, 9, bytes(128))\n" + CALLED),
    ("signal by pidfd", "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({pid}), 0)"),
    ("signal by ownership of a file", "import fcntl\nfcntl.fcntl(0, 8, {pid})\nfcntl.fcntl(0, 10, 9)"),
    ("signal by ownership of a group", C + "r = c.fcntl(3, 15, (ctypes.c_int * 2)(1, {pid}))\n" + CALLED),
    ("signal by ownership of a socket", C + "r = c.ioctl(3, 0x8901, ctypes.byref(ctypes.c_int({pid})))\n" + CALLED),
    ("signal by ownership of a socket, other request", C + "r = c.ioctl(3, 0x8902, ctypes.byref(ctypes.c_int({pid})))\n" + CALLED),
    ("terminal input", C + "r = c.ioctl(0, 0x5412, b'x')\n" + CALLED),
    ("trace", C + "r = c.ptrace(16, {pid}, 0, 0)\n" + CALLED),
    ("being traced", C + "r = c.ptrace(0, 0, 0, 0)\n" + CALLED),
    ("memory of the host", C + "r = c.syscall(310, {pid}, 0, 0, 0, 0, 0)\n" + CALLED),
    ("writing the host's memory", C + "r = c.syscall(311, {pid}, 0, 0, 0, 0, 0)\n" + CALLED),
    ("descriptor of the host", C + "r = c.syscall(438, 3, 0, 0)\n" + CALLED),
    ("priority", "import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)"),
    ("own priority", "import os\nos.nice(5)"),
    ("disk priority", C + "r = c.syscall(251, 1, {pid}, 0)\n" + CALLED),
    ("affinity", "import os\nos.sched_setaffinity({pid}, [0])"),
    ("scheduler", "import os\nos.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"),
    ("limits of the host", "import resource\nresource.prlimit({pid}, resource.RLIMIT_NOFILE, (3, 3))"),
    ("own limits", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"),
    ("own limits by prlimit", "import resource\nresource.prlimit(0, resource.RLIMIT_CPU, (-1, -1))"),
    ("session", "import os\nos.setsid()"),
    ("group", "import os\nos.setpgid(0, 0)"),
    ("surviving the supervisor", C + "r = c.prctl(1, 0, 0, 0, 0)\n" + CALLED),
    # the kernel
    *[(f"system call {name}", C + f"r = c.syscall({number}, 0, 0, 0, 0, 0, 0)\n" + CALLED) for name, number in
      {"mount": 165, "umount": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428, "fsopen": 430,
       "move_mount": 429, "mount_setattr": 442, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248,
       "request_key": 249, "io_uring_setup": 425, "io_setup": 206, "seccomp": 317, "landlock": 444, "personality": 135, "modify_ldt": 154,
       "iopl": 172, "init_module": 175, "kexec_load": 246, "reboot": 169, "swapon": 167, "syslog": 103, "acct": 163, "quotactl": 179,
       "capset": 126, "setuid": 105, "setgroups": 116, "sethostname": 170, "settimeofday": 164, "shmget": 29, "semget": 64, "msgget": 68,
       "mq_open": 240, "memfd_secret": 447, "process_madvise": 440, "kcmp": 312, "fanotify_init": 300, "inotify_init1": 294,
       "sync": 162, "syncfs": 306, "a future system call": 470}.items()],
    ("namespace", C + "r = c.unshare(0x10000000)\n" + CALLED),
    ("clearing no_new_privs", C + "r = c.prctl(38, 0, 0, 0, 0)\n" + CALLED),
    ("dumps", C + "r = c.prctl(4, 1, 0, 0, 0)\n" + CALLED),
    ("capabilities", C + "h = (ctypes.c_uint * 2)(0x20080522, 0)\nd = (ctypes.c_uint * 6)()\nc.capget(h, d)\nany(d)"),
    ("clock", "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)"),
    ("lease on a library file", "import fcntl, os, wave\nfcntl.fcntl(os.open(wave.__file__, 0), 1024, fcntl.F_WRLCK) == 0 and 'leased'"),
    ("directory watch", "import fcntl, os\nfcntl.fcntl(os.open('.', 0), 1026, 1) == 0 and 'watched'"),
    # ways around the filter
    ("32-bit entry", ASM.format("b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3'") + "'allowed'"),
    ("x32 entry", ASM.format("b'\\xb8\\x27\\0\\0\\x40\\x0f\\x05\\xc3'") + "'allowed'"),
    ("x32 open", C + "r = c.syscall(0x40000002, b'{file}', 0)\n" + CALLED),
    ("system call number with high bits", C + "r = c.syscall(ctypes.c_long(-1 << 32 | 41), 2, 1, 0)\n" + CALLED),
]  # fmt: skip


@pytest.mark.sampled(5, each="jail")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86_64")
@pytest.mark.parametrize("code", [row[1] for row in ESCAPES], ids=[row[0] for row in ESCAPES])
def test_guest_code_cannot_reach_anything_outside_the_jail(
    jail: Target, outside: Outside, secret: str, code: str
) -> None:
    """Ours: SPEC §11; each probe succeeds in a bare interpreter, or would if the machine permitted it."""
    result = jail.box.run(code.format(**outside.places()), session="escape", limits={"wall_ms": 3_000})
    assert result.error is not None or not result.result, result.result
    assert secret not in repr(result)
    outside.is_untouched()
    assert jail.box.run("1 + 1", session="bystander").result == 2


def test_there_are_enough_escapes() -> None:
    """Ours: the table must not shrink by accident."""
    assert len(ESCAPES) >= 190


def test_a_guest_has_no_open_files_besides_devices_and_one_socket(jail: Target) -> None:
    """Ours: a guest does not inherit the open files of the host."""
    code = """
import os, stat
found = []
for n in range(1024):
    try: mode = os.fstat(n).st_mode
    except OSError: continue
    found.append('socket' if stat.S_ISSOCK(mode) else 'device' if stat.S_ISCHR(mode) else 'other')
sorted(found)
"""
    assert jail.box.run(code, session="handles").result == ["device", "device", "device", "socket"]


def test_a_file_lease_cannot_block_the_host(jail: Target) -> None:
    """Bug: a write lease on a file of the standard library blocked every process that opened it for 45 s."""
    code = "import fcntl, os, wave\nf = os.open(wave.__file__, os.O_RDONLY)\nfcntl.fcntl(f, 1024, fcntl.F_WRLCK)\nfcntl.fcntl(f, 1024, fcntl.F_RDLCK)"
    assert jail.attack(code, "lease", limits={"wall_ms": 10_000}).status == "permission_denied"
    began = time.monotonic()
    Path(wave.__file__).read_bytes()
    assert time.monotonic() - began < 10
    jail.is_well("lease")


CPU, MEMORY, WALL, STACK, OUTPUT, CALLS, DIED = (
    "TIMEOUT_CPU", "MEMORY_EXCEEDED", "TIMEOUT_WALL", "STACK_OVERFLOW", "STDOUT_EXCEEDED", "EXTERNAL_CALLS_EXCEEDED", "INTERRUPTED",
)  # fmt: skip
FINE, RAISED = "fine", "RUNTIME_ERROR"
SPIN = "    try:\n        while True: pass\n    except BaseException: pass"

BOMBS: list[tuple[str, str, set[str]]] = [
    ("loop", "while True: pass", {CPU}),
    ("loop that catches", "while True:\n" + SPIN, {CPU}),
    ("sum of a big range", "sum(range(10**10))", {CPU}),
    ("big power", "10 ** 10 ** 8 % 7", {CPU, MEMORY}),
    ("regex backtracking", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')", {CPU}),
    ("sort with a hostile key", "sorted(range(10**6), key=lambda x: sum(range(1000)))", {CPU, MEMORY}),
    ("handlers for every signal", "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, lambda *a: None)\n    except (OSError, ValueError): pass\nwhile True: pass", {CPU}),
    ("computing in C while holding the GIL", "list(__import__('itertools').product(range(10**4), repeat=9))", {CPU, MEMORY}),
    ("computing threads", "import threading\n[threading.Thread(target=lambda: sum(range(10**12))).start() for _ in range(4)]\nthreading.Event().wait()", {CPU}),
    ("a tracer that loops", "import sys\ndef t(*a):\n    while True: pass\nsys.settrace(t)\n(lambda: 0)()", {CPU}),
    ("a collector that loops", "import gc\ndef t(*a):\n    while True: pass\ngc.callbacks.append(t)\ngc.collect()", {CPU}),
    ("a finaliser that loops", "class A:\n    def __del__(s):\n        while True: pass\nA()\n1", {CPU}),
    ("an exit that loops", "import atexit, sys\n@atexit.register\ndef f():\n    while True: pass\nsys.exit()", {RAISED, CPU, FINE}),
    ("a result that loops", "class D(dict):\n    def items(s):\n        while True: pass\n    keys = __iter__ = __len__ = items\nD(a=1)", {CPU, FINE, "RESULT_NOT_SERIALIZABLE"}),
    ("an error whose message loops", "class E(Exception):\n    def __str__(s):\n        while True: pass\nraise E", {CPU}),
    ("an object whose pickling loops", "class R:\n    def __reduce__(s):\n        while True: pass\nr = R()", {CPU}),
    ("an import hook that loops", "import sys\nclass F:\n    def find_spec(s, *a):\n        while True: pass\nsys.meta_path.insert(0, F())\nimport nothing_of_that_name", {CPU}),
    ("waiting for a pipe", "import os\nr, w = os.pipe()\nos.read(r, 1)", {WALL}),
    ("consuming the host's answers", "import os\nfor n in range(3, 9):\n    try: os.read(n, 1)\n    except OSError: pass", {WALL, DIED}),
    ("sleeping for a very long time", "import time\ntime.sleep(1e308)", {WALL}),
    ("sleeping for an infinite time", "import time\ntime.sleep(float('inf'))", {WALL, RAISED, "INVALID_ARGUMENT"}),
    ("sleeping without sleep", C + "c.sleep(10**6)", {WALL}),
    ("compressed bomb", "import zlib\nz = zlib.compress(bytes(10**8), 9)\nx = zlib.decompress(zlib.decompress(zlib.compress(z)))", {MEMORY, CPU}),
    ("archive bomb", "import io, zipfile\nb = io.BytesIO()\nwith zipfile.ZipFile(b, 'w', zipfile.ZIP_DEFLATED) as z: z.writestr('a', bytes(3 * 10**7))\nzipfile.ZipFile(b).extractall('.')\nx = open('a', 'rb').read() * 9", {MEMORY, CPU}),
    ("entities", "import xml.dom.minidom as m\ne = ''.join(f'<!ENTITY a{i} \"{f\"&a{i-1};\" * 10 if i else \"x\" * 50}\">' for i in range(9))\nm.parseString(f'<!DOCTYPE a [{e}]><a>&a8;</a>')", {MEMORY, CPU, RAISED}),
    ("deep recursion", "def f(): f()\nf()", {STACK}),
    ("recursion without a limit", "import sys\nsys.setrecursionlimit(2**31 - 1)\ndef f(): f()\nf()", {STACK, MEMORY, DIED, CPU}),
    ("deep result", "x = []\nfor _ in range(10**5): x = [x]\nx", {"RESULT_NOT_SERIALIZABLE", STACK, RAISED, MEMORY}),
    ("deep argument", "x = []\nfor _ in range(10**5): x = [x]\necho(x)", {"INVALID_ARGUMENT", STACK, RAISED, MEMORY}),
    ("output", "while True: print('x' * 1000)", {OUTPUT, CPU}),
    ("output in pieces", "import sys\nwhile True: sys.stdout.write('x')", {OUTPUT, CPU}),
    ("endless empty output", "while True: print(end='', flush=True)", {CPU, WALL}),
    ("one huge line", "print('x' * (5 << 20))", {OUTPUT}),
    ("output of lone surrogates", "print('\\ud800' * 100)", {FINE, RAISED}),
    ("calls", "while True: add(1)", {CALLS}),
    ("calls that catch", "while True:\n    try: add('x')\n    except BaseException: pass", {CALLS}),
    ("concurrent calls", "import asyncio\nawait asyncio.gather(*[add(1) for _ in range(500)])", {CALLS}),
    ("tasks", "import asyncio\nasync def f(): await asyncio.gather(f(), f())\nawait f()", {CPU, MEMORY, STACK}),
    ("waiting for no answer", "import asyncio\nawait asyncio.Event().wait()", {DIED, RAISED, WALL}),
    ("large arguments", "x = [[]] * 400_000\nwhile True: echo(x)", {"REQUEST_TOO_LARGE", CPU, MEMORY, WALL}),
]  # fmt: skip

HOARDS: list[tuple[str, str, set[str]]] = [
    ("huge integer as text", "import sys\nsys.set_int_max_str_digits(0)\nstr(7 ** 3_000_000)", {CPU}),
    ("blocked signals", "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", {CPU}),
    ("stopping its own process", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", {WALL}),
    ("waiting for a lock", "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()", {WALL}),
    ("big text", "x = 'a' * 10**10", {MEMORY}),
    ("big text, caught", "try: x = 'a' * 10**10\nexcept MemoryError: x = 1\nx", {MEMORY}),
    ("growing list", "x = []\nwhile True: x.append('a' * 10**5)", {MEMORY}),
    ("growing list that catches", "x = []\nwhile True:\n    try:\n        while True: x.append('a' * 10**5)\n    except BaseException: pass", {MEMORY}),
    ("memory map", "import mmap\nm = []\nwhile True:\n    m.append(mmap.mmap(-1, 8 << 20))\n    m[-1].write(b'x' * (8 << 20))", {MEMORY, RAISED}),
    ("memory map of a file", "import mmap\nf = open('x', 'w+b')\nf.truncate(60 << 20)\nm = [mmap.mmap(f.fileno(), 60 << 20) for _ in range(9)]\n[x.write(b'x' * (60 << 20)) for x in m]", {MEMORY, RAISED, CPU}),
    ("memory of the C library", C + "c.malloc.restype = ctypes.c_void_p\nwhile True:\n    p = c.malloc(1 << 20)\n    if p: ctypes.memset(p, 1, 1 << 20)", {MEMORY, CPU}),
    ("pipes full of data", "import os\nk = []\nwhile True:\n    k.append(os.pipe())\n    os.set_blocking(k[-1][1], False)\n    os.write(k[-1][1], bytes(1 << 16))", {RAISED, FINE}),
    ("recursion in C", "import sys\nsys.setrecursionlimit(2**31 - 1)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)", {STACK, MEMORY, DIED, CPU}),
    ("fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {CPU}),
    ("thread bomb", "import threading\nthreading.stack_size(32768)\ne = threading.Event()\nwhile True: threading.Thread(target=e.wait, daemon=True).start()", {MEMORY, RAISED}),
    ("thread bomb that catches", "import threading\ne = threading.Event()\nwhile True:\n    try: threading.Thread(target=e.wait, daemon=True).start()\n    except BaseException: pass", {MEMORY, CPU}),
    ("descriptors", "import os\nwhile True: os.dup(0)", {RAISED}),
    ("descriptors, caught", "import os\ntry:\n    while True: os.dup(0)\nexcept OSError: pass\necho(1)", {FINE}),
    ("one big file", "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))", {RAISED, MEMORY}),
    ("one big file that catches", "f = open('x', 'wb', 0)\nwhile True:\n    try: f.write(bytes(1 << 20))\n    except OSError: pass", {CPU, MEMORY}),
    ("many big files", "n = 0\nwhile True:\n    n += 1\n    with open(f'{n}', 'wb') as f: f.write(bytes(1 << 20))", {RAISED, MEMORY}),
    ("unlinked files", "import os\nk = []\nwhile True:\n    k.append(open('x', 'wb', 0))\n    os.unlink('x')\n    for _ in range(8): k[-1].write(bytes(1 << 20))", {RAISED, MEMORY}),
    ("unnamed files", "import os\nk = []\nwhile True:\n    k.append(os.open('.', os.O_TMPFILE | os.O_RDWR))\n    for _ in range(8): os.write(k[-1], bytes(1 << 20))", {RAISED, MEMORY}),
    ("empty files", "n = 0\nwhile True:\n    n += 1\n    open(f'{n}', 'x').close()", {MEMORY}),
    ("links", "import os\nn = 0\nwhile True:\n    n += 1\n    os.symlink('x', f'{n}')", {MEMORY}),
    ("nested directories", "import os\nwhile True:\n    os.mkdir('a')\n    os.chdir('a')", {MEMORY}),
    ("nested directories with long names", "import os\nwhile True:\n    os.mkdir('a' * 250)\n    os.chdir('a' * 250)", {MEMORY}),
    ("hidden directories", "import os\nos.mkdir('a', 0)\nwhile True: pass", {CPU, MEMORY}),
    ("large state", "x = bytes(20 << 20)\ny = [bytes(x) + bytes([n]) for n in range(3)]", {MEMORY}),
]  # fmt: skip


def ends_well(target: Target, session: str, code: str, expected: set[str]) -> None:
    """Run a bomb; check that it ends as expected, that earlier state is kept, and that other sessions run."""
    target.keep(session)
    result = target.attack(code, session)
    found = FINE if result.error is None else str(result.error.code)
    slow = (
        {CPU, WALL} if MEMORY in expected or CPU in expected else set()
    )  # a busy machine may reach a time limit first
    assert found in expected | slow, result.error
    target.has_kept(session)
    assert target.box.run("1 + 1", session="bystander").result == 2


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), [row[1:] for row in BOMBS], ids=[row[0] for row in BOMBS])
def test_a_bomb_ends_in_time_and_does_no_harm(
    any_jail: Target, sid: str, code: str, expected: set[str]
) -> None:
    """Ours: SPEC §5; no guest code can hang, kill or slow the host for longer than its limit and a second."""
    ends_well(any_jail, sid, code, expected)


@pytest.mark.sampled(4, each="jail")
@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), [row[1:] for row in HOARDS], ids=[row[0] for row in HOARDS])
def test_memory_files_and_threads_are_limited_in_each_kind_of_jail(
    jail: Target, sid: str, code: str, expected: set[str]
) -> None:
    """Ours: the mechanisms differ between the kinds of jail, the limits do not."""
    ends_well(jail, sid, code, expected)


def test_there_are_enough_bombs() -> None:
    """Ours: the tables must not shrink by accident."""
    assert len(BOMBS) + len(HOARDS) >= 65


@pytest.mark.slow
def test_deeply_nested_directories_do_not_kill_the_watchdog(jail: Target, sid: str) -> None:
    """Bug: directories nested a thousand deep killed the thread that enforces the limits of all sessions."""
    code = "import os\nfor _ in range(1990):\n    os.mkdir('a')\n    os.chdir('a')\nn = 0\nwhile n < 10**6: n += 1"
    jail.attack(code, sid, limits={"cpu_ms": 900, "wall_ms": 2_000})
    assert jail.attack("while True: pass", sid).error.code in (CPU, WALL)  # WALL on a busy machine
    jail.is_well(sid)


def test_deeply_nested_files_are_removed_after_a_run(jail: Target, sid: str) -> None:
    """Bug: files nested deeper than the number of file handles survived into the next run."""
    code = "import os\nfor _ in range(300):\n    os.mkdir('a' * 200)\n    os.chdir('a' * 200)\nopen('f', 'w').close()"
    jail.box.run(code, session=sid)
    assert jail.box.run("import os\nos.listdir('.')", session=sid).result == []


# ── guests that forge messages ───────────────────────────────────────────────────────────────────────

FORGE = """
import gc, os, struct, sys, threading
wire = next(o for o in gc.get_objects() if type(o).__name__ == 'HostChannel')
def raw(data):
    while data: data = data[os.write(wire._handle, data):]
own = getattr(wire, '_nonce', b'')  # so that these attacks also work where frames carry no nonce
def framed(data, nonce=None):
    data = (nonce or own) + data
    return struct.pack('>I', len(data)) + data
def send(text, data=None):
    text = text.encode()
    raw(framed(text if data is None else b'#' + struct.pack('>I', len(text)) + text + data))
def call(name, args='[]', kwargs='{}', later='false', id=1):
    send('{"t":"call","id":%s,"name":"%s","later":%s,"args":%s,"kwargs":%s}' % (id, name, later, args, kwargs))
def answer(): return os.read(wire._handle, 1 << 16)
"""
QUIT = "\nos._exit(0)"

LIMITS = {"cpu_ms": 250, "wall_ms": 250}
PLENTY = {"cpu_ms": 4_000, "wall_ms": 5_000}

FORGERIES: list[tuple[str, str]] = [
    ("a result", "send('{\"t\":\"end\",\"result\":\"forged\"}')" + QUIT),
    ("an infinite number as result", "send('{\"t\":\"end\",\"result\":1e999}')" + QUIT),
    ("a deeply nested result", "send('{\"t\":\"end\",\"result\":' + '[' * 50000 + ']' * 50000 + '}')" + QUIT),
    ("a result with a lone surrogate", "send('{\"t\":\"end\",\"result\":\"\\\\ud800\"}')" + QUIT),
    ("a result with a huge number", "send('{\"t\":\"end\",\"result\":' + '9' * 100000 + '}')" + QUIT),
    ("a result of twenty megabytes", "send('{\"t\":\"end\",\"result\":\"' + 'x' * (20 << 20) + '\"}')" + QUIT),
    ("invalid names", "send('{\"t\":\"end\",\"names\":[\"a b\",\"\",\"__import__\"],\"plain\":true}', b'')" + QUIT),
    ("a garbage state", "send('{\"t\":\"end\",\"names\":[\"x\"],\"plain\":true}', b'rubbish')" + QUIT),
    ("a missing state", "send('{\"t\":\"end\",\"names\":[\"x\"],\"plain\":true}')" + QUIT),
    ("endless notes", "send('{\"t\":\"end\",\"notes\":[' + ','.join(['\"' + 'n' * 900 + '\"'] * 9000) + ']}')" + QUIT),
    ("an error at an invalid position", "send('{\"t\":\"end\",\"error\":{\"kind\":\"X\",\"message\":\"m\",\"span\":[-1,0,-5,null]}}')" + QUIT),
    ("an error at a huge position", "send('{\"t\":\"end\",\"error\":{\"kind\":\"X\",\"message\":\"m\",\"span\":[9999999999999999999999,1,2,3]}}')" + QUIT),
    ("a forged host error", "send('{\"t\":\"end\",\"error\":{\"kind\":\"WAITING_FOR_APPROVAL\",\"message\":\"m\",\"text\":\"m\"}}')" + QUIT),
    ("a lost session", "send('{\"t\":\"end\",\"lost\":{\"kind\":\"X\",\"message\":\"m\"}}')" + QUIT),
    ("a negative memory peak", "send('{\"t\":\"ran\",\"peak\":-9999999999999999999999}')" + QUIT),
    ("two end messages", "send('{\"t\":\"end\",\"result\":1}')\nsend('{\"t\":\"end\",\"result\":2}')"),
    ("a second ready message", "send('{\"t\":\"ready\"}')"),
    ("endless loaded messages", "while True: send('{\"t\":\"loaded\"}')"),
    ("a call after the end", "send('{\"t\":\"ran\",\"peak\":0}')\ncall('note', '[\"late\"]')\nanswer()"),
    ("a call to an unknown function", "call('unknown')\nanswer()"),
    ("a call to an unknown function with a problem", "send('{\"t\":\"call\",\"id\":1,\"name\":\"unknown\",\"later\":false,\"problem\":\"p\"}')\nanswer()"),
    ("a call to an invalid name", "call('a b\\\\u0000')\nanswer()"),
    ("a call to an internal name", "call('__class__')\nanswer()"),
    ("a call with strange arguments", "call('add', '{}', '[]')\nanswer()"),
    ("a call with strange names", "call('add', '[1]', '{\"\":1,\"__class__\":2}')\nanswer()"),
    ("a call with a strange id", "call('add', '[1]', id=-2**70)\nanswer()"),
    ("the same call many times", "[call('add', '[1]', later='true', id=7) for _ in range(20)]\nsend('{\"t\":\"blocked\"}')\nanswer()"),
    ("more calls than permitted", "[call('add', '[1]', later='true') for _ in range(50)]\nsend('{\"t\":\"blocked\"}')\nanswer()"),
    ("waiting for nothing", "send('{\"t\":\"blocked\"}')\nanswer()"),
    *[(f"a sleep of {seconds}", f"call('sleep', '[]', '{{\"seconds\":{seconds}}}')\nanswer()") for seconds in
      ("\"abc\"", "null", "[1]", "{}", "-5", "\"nan\"", "1e999", "9" * 400, "true")],
    ("a sleep without a duration", "call('sleep')\nanswer()"),
    ("a sleep with two durations", "call('sleep', '[1]', '{\"seconds\":1}')\nanswer()"),
    ("names to load", "for n in range(12000):\n    send('{\"t\":\"load\",\"name\":\"%s%d\"}' % ('x' * 900, n))\n    answer()"),
    ("output to an unknown stream", "send('{\"t\":\"out\",\"stream\":\"stdin\",\"text\":\"x\"}')"),
    ("endless output", "while True: send('{\"t\":\"out\",\"stream\":\"stdout\",\"text\":\"' + 'x' * 10**6 + '\"}')"),
    ("endless empty output", "while True: send('{\"t\":\"out\",\"stream\":\"stdout\",\"text\":\"\"}')"),
    ("a frame of four gigabytes", "raw(b'\\xff' * 4)"),
    ("a frame that is too long", "raw(struct.pack('>I', (96 << 20) + 1))"),
    ("a frame that never ends", "raw(struct.pack('>I', 90 << 20) + bytes(1000))\nthreading.Event().wait()"),
    ("half a length", "raw(b'\\0\\0')\nthreading.Event().wait()"),
    ("an empty frame", "raw(bytes(4))"),
    ("bytes longer than the frame", "raw(framed(b'#' + b'\\xff' * 4))"),
    ("bytes without a length", "raw(framed(b'#'))"),
    ("a frame with an empty body", "raw(framed(b''))"),
    ("rubbish", "raw(os.urandom(1 << 16))"), ("garbage in a frame", "raw(framed(os.urandom(1 << 16)))"),
    ("a frame without a nonce", "t = b'{\"t\":\"blocked\"}'\nraw(struct.pack('>I', len(t)) + t)"),
    ("a frame with the nonce of no run", "raw(framed(b'{\"t\":\"blocked\"}', bytes(16)))"),
    ("a frame shorter than a nonce", "raw(struct.pack('>I', 8) + own[:8])"),
    ("invalid JSON", "send('{')"), ("JSON that is not an object", "send('[]')"), ("no message type", "send('{}')"), ("an unknown message type", "send('{\"t\":\"x\"}')"),
    ("a duplicate key", "send('{\"t\":\"end\",\"t\":\"call\",\"result\":1}')"),
    ("silence", "threading.Event().wait()"),
    ("the socket closed", "os.close(wire._handle)"),
    ("the socket in non-blocking mode", "os.set_blocking(wire._handle, False)\necho(1)"),
    ("a thread that sends messages in between", "threading.Thread(target=lambda: [send('{\"t\":\"blocked\"}') for _ in range(1000)], daemon=True).start()\nadd(1)"),
    ("a thread that calls", "threading.Thread(target=lambda: [call('note', '[1]') for _ in range(9)], daemon=True).start()\nadd(1)"),
    ("the runner changed", "import standfast_guest.session as s\ns.GuestSession._pack = lambda *a: None"),
    ("the writer changed", "type(wire).post = type(wire).flush = lambda *a: None"),
    ("the encoder changed", "import standfast_guest.calls as c\nc.encode = lambda v: '\"x\",\"t\":\"end\"'\nadd(1)"),
    ("json changed", "import json\njson.dumps = json.loads = json.JSONEncoder.encode = None\nadd(1)"),
    ("struct changed", "import struct\nstruct.pack = struct.unpack = None\nadd(1)"),
    ("built-in names changed", "import builtins\nbuiltins.len = builtins.dict = builtins.isinstance = None\nadd(1)"),
    ("modules removed", "sys.modules.clear()\nadd(1)"),
    ("frames above", "f = sys._getframe()\nwhile f.f_back: f = f.f_back; f.f_locals.clear()\nadd(1)"),
    ("objects above", "[o.__dict__.clear() for o in gc.get_objects() if type(o).__name__ in ('GuestSession', 'Bridge', 'Printer')]\nadd(1)"),
    ("an exit", "os._exit(0)"), ("an abort", "os.abort()"), ("a crash", "import ctypes\nctypes.string_at(0)"),
    ("a kill", "os.kill(os.getpid(), 9)"), ("a SystemExit", "raise SystemExit(0)"), ("an interrupt", "raise KeyboardInterrupt"),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("code", [row[1] for row in FORGERIES], ids=[row[0] for row in FORGERIES])
def test_forged_messages_do_not_harm_the_host(
    any_jail: Target, sid: str, noted: list[Any], secret: str, code: str
) -> None:
    """Ours: the host does not trust the runner inside the guest."""
    result = any_jail.attack(FORGE + code, sid, limits={**LIMITS, "memory_mb": 200})
    assert result.status != "waiting_for_approval"
    assert secret not in repr(result)
    assert len(result.diagnostics) < 200
    assert noted.count(("paid", 1)) == 0
    assert len(noted) <= 9
    any_jail.is_well(sid)


def test_a_forged_call_to_a_tool_that_needs_approval_waits_for_it(
    any_jail: Target, sid: str, noted: list[Any]
) -> None:
    """Ours: the host enforces approvals, no matter how a call is made."""
    result = any_jail.attack(FORGE + "call('pay', '[1000]')\nanswer()", sid, limits=PLENTY)
    assert result.status == "waiting_for_approval"
    assert any_jail.box.cancel(sid)
    assert noted == []
    any_jail.is_well(sid)


def test_a_forged_call_is_counted_and_validated_like_any_other(
    any_jail: Target, sid: str, noted: list[Any]
) -> None:
    """Ours: the host enforces limits and contracts, no matter how a call is made."""
    code = "for n in range(100):\n    call('note', '[%d]' % n, id=n)\n    answer()"
    result = any_jail.attack(FORGE + code, sid, limits={"max_external_calls": 5, "wall_ms": 5_000})
    assert result.error is not None
    assert (result.error.code, noted) == (CALLS, [0, 1, 2, 3, 4])
    shown = any_jail.attack(
        FORGE + "call('add', '[\"x\"]')\nshown = answer().decode()\nshown", f"{sid}-2", limits=PLENTY
    )
    assert "INVALID" in repr(shown) or "TypeError" in repr(shown), shown
    any_jail.is_well(sid)


PLANT = """
def text(t, **more): return framed(__import__('json').dumps({'t': t, **more}).encode())
end = text('ran', peak=0) + text('end', result='forged')
note = text('call', id=1, name='note', later=False, args=['planted'])
def plant(data):
    os.write(wire._handle, end + data)  # at once: the host cannot stop the process in between
    threading.Event().wait()
"""
PLANTED: list[tuple[str, str]] = [
    ("a call", "plant(note)"),
    ("a call, and the end of the next run", "plant(note + end)"),
    ("the end of the next run", "plant(end)"),
    ("many calls", "plant(note * 100)"),
    ("output", "plant(text('out', stream='stdout', text='planted'))"),
    ("a name to load", "plant(text('load', name='planted'))"),
    ("a memory message", "plant(text('memory'))"),
    ("half a frame", "plant(note[:30])"), ("half a length", "plant(b'\\0\\0')"), ("one byte", "plant(b'x')"),
    ("a call after a large frame", "plant(framed(b'x' * 100_000) + note)"),
    ("a call after the real end", "f = wire.flush\ndef flush():\n    f()\n    os.write(wire._handle, note)\nwire.flush = flush\n1"),
    ("a call, a moment after the end", "os.write(wire._handle, end)\nos.write(wire._handle, note)\nthreading.Event().wait()"),
    ("a call from an uncounted thread", "import _thread\n_thread.start_new_thread(lambda: [os.write(wire._handle, note) for _ in range(9)], ())\nplant(b'')"),
    ("calls from a thread in every run", "import _thread\n_thread.start_new_thread(lambda: [call('note', '[\"planted\"]') for _ in range(10**9)], ())\n1"),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("code", [row[1] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_messages_planted_by_one_run_do_not_affect_the_next(
    any_jail: Target, sid: str, noted: list[Any], code: str
) -> None:
    """Bug: a run that may not make calls wrote a call to its socket, and the next run executed it."""
    none = {**PLENTY, "max_external_calls": 0, "memory_mb": 200}
    any_jail.attack(FORGE + PLANT + code, sid, limits=none)
    assert noted == []
    for _ in range(2):
        result = any_jail.box.run("print('mine')\nadd(1) + 40", session=sid)
        assert (result.status, result.result, result.stdout) == ("ok", 42, "mine\n"), result.error
    assert noted == []
    any_jail.is_well(sid)


MEGABYTE = 1 << 20
LARGE: list[tuple[str, str]] = [
    ("a call to an unknown function", "call('unknown', '[' + ','.join(['[]'] * 6_000_000) + ']')\nanswer()"),
    ("a call to an unknown function with named arguments", "call('unknown', '[]', '{' + ','.join('\"%d\":{}' % n for n in range(10**6)) + '}')\nanswer()"),
    ("a call to a tool", "call('echo', '[' + ','.join(['[]'] * 6_000_000) + ']')\nanswer()"),
    ("a call just below the limit", "call('echo', '[' + ','.join(['[]'] * 340_000) + ']')\nanswer()"),
    ("many calls below the limit", "for n in range(30): call('echo', '[' + ','.join(['[]'] * 80_000) + ']', later='true', id=n)\nsend('{\"t\":\"blocked\"}')\nanswer()"),
    ("calls above the limit", "body = '[' + ','.join(['[]'] * 1_000_000) + ']'\nfor n in range(40): call('echo', body, later='true', id=n)\nsend('{\"t\":\"blocked\"}')\nanswer()"),
    ("a sleep", "call('sleep', '[' + ','.join(['[]'] * 6_000_000) + ']', '{\"seconds\":0}')\nanswer()"),
    ("a result", "send('{\"t\":\"end\",\"result\":[' + ','.join(['[]'] * 5_000_000) + ']}')" + QUIT),
    ("a result of objects", "send('{\"t\":\"end\",\"result\":[' + ','.join(['{}'] * 5_000_000) + ']}')" + QUIT),
    ("names", "send('{\"t\":\"end\",\"names\":[' + ','.join(['\"a\"'] * 4_000_000) + ']}', b'')" + QUIT),
    ("notes", "send('{\"t\":\"end\",\"notes\":[' + ','.join(['\"a\"'] * 4_000_000) + ']}')" + QUIT),
    ("an error", "send('{\"t\":\"end\",\"error\":{\"kind\":\"X\",\"message\":\"' + chr(0x10400) + 'm' * (19 << 20) + '\"}}')" + QUIT),
    ("output", "send('{\"t\":\"out\",\"stream\":\"stdout\",\"text\":\"' + chr(0x10400) + 'm' * (19 << 20) + '\"}')"),
    ("a name to load", "send('{\"t\":\"load\",\"name\":\"' + 'm' * (19 << 20) + '\"}')\nanswer()"),
    ("meaningless fields", "send('{\"t\":\"blocked\",\"x\":[' + ','.join(['[]'] * 6_000_000) + ']}')\nanswer()"),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("code", [row[1] for row in LARGE], ids=[row[0] for row in LARGE])
def test_a_large_frame_takes_host_memory_of_only_a_few_times_its_size(
    any_jail: Target, sid: str, code: str
) -> None:
    """Bug: a call of 19 MB to an unknown tool was decoded before it was refused, to 50 times its size."""
    any_jail.box.run("1", session=sid)  # so that the imports of a first run do not count
    gc.collect()
    host = PeakMemory(os.getpid())
    host.reset()
    before = host.bytes()
    limits = {"cpu_ms": 20_000, "wall_ms": 20_000, "memory_mb": 800}
    result = any_jail.box.run(FORGE + code, session=sid, limits=limits)
    after = host.bytes()
    host.close()
    assert result.status != "ok" or result.result is None
    assert before is not None
    assert after is not None
    assert after - before < 120 * MEGABYTE
    any_jail.is_well(sid)


def test_guest_threads_do_not_run_between_runs(jail: Target, sid: str, noted: list[Any]) -> None:
    """Ours: a worker process that runs no code is stopped."""
    code = (
        FORGE
        + "import time\ndef later():\n    while True:\n        call('note', '[\"late\"]')\n        real(0.001)\n"
    )
    code += "real = next(o for o in gc.get_objects() if getattr(o, '__name__', '') == 'sleep' and type(o).__name__ == 'builtin_function_or_method')\n"
    jail.attack(code + "threading.Thread(target=later, daemon=True).start()", sid)
    noted.clear()
    for _ in range(20):
        assert jail.box.run("add(1)", session="bystander").result == 2
    assert noted == []
    jail.is_well(sid)


def test_changes_to_the_interpreter_are_invisible_to_other_sessions(jail: Target, sid: str) -> None:
    """Ours: a process serves one session only."""
    jail.attack(
        "import builtins, sys\nbuiltins.leak = 'seen'\nsys.path.append('/x')\nopen('left', 'w').close()", sid
    )
    code = "import builtins, os, sys\n[hasattr(builtins, 'leak'), '/x' in sys.path, os.listdir('.')]"
    assert jail.box.run(code, session=f"{sid}-other").result == [False, False, []]


@pytest.mark.parametrize("again", ["reset", "destroy"])
def test_old_code_cannot_spy_on_the_next_owner_of_a_session(any_jail: Target, sid: str, again: str) -> None:
    """Bug: after a forged end, old code read the next owner's code and inputs and answered in its place."""
    any_jail.box.run(FORGE + "send('{\"t\":\"end\"}')\n'taken: ' + answer().decode('latin-1')", session=sid)
    getattr(any_jail.box, again)(sid)
    result = any_jail.box.run("'mine'", session=sid, inputs={"token": "of-the-next-owner"})
    assert "of-the-next-owner" not in repr(result)
    assert (result.status, result.result) == ("ok", "mine")
