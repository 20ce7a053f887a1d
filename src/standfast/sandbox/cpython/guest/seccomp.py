"""The filter of system calls, as a BPF program for seccomp, and its installation.

The kernel runs the program before every system call and obeys its verdict. The program sees the number of the
call and its arguments as integers, but no memory. So `clone3`, whose flags are in memory, is reported as not
existing; the C library then falls back to `clone`.

A call from another architecture, or by the x32 calling convention of x86_64, ends the process. A denied call
fails with EPERM, which Python raises as a PermissionError. Calls that are not listed here are allowed if
their number is at most `LAST_KNOWN`; those with a higher number fail as not existing, so that an upgrade of
the kernel gives the guest nothing new.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping
from typing import Final

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
ERRNO: Final = 0x00050000
EPERM: Final = 1
ENOSYS: Final = 38

_ARCHES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's number of each architecture, and the architecture's column in the tables of calls."""
_X32: Final = 0x40000000
_LD: Final = 0x20
_AND: Final = 0x54
_JEQ: Final = 0x15
_JGE: Final = 0x35
_RET: Final = 0x06
_NUMBER: Final = 0
_ARCH: Final = 4
_CLONE_THREAD: Final = 0x00010000
_CLONE_NAMESPACES: Final = 0x7E020000
_PR_NAMES: Final = (15, 16)
_FCNTL_NEVER: Final = (8, 10, 15, 1024, 1026)
"""Commands that send signals on file events, take leases (which block other processes), watch directories."""
_IOCTL_NEVER: Final = (0x5452, 0x8901, 0x8902)
"""Commands that send signals on socket events."""
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

Instruction = tuple[int, int, int, int]
"""An operation, the number of instructions to skip if true and if false, and the operand."""
_ALLOW_CALL: Final[Instruction] = (_RET, 0, 0, ALLOW)
_REFUSE_CALL: Final[Instruction] = (_RET, 0, 0, ERRNO | EPERM)
_NO_SUCH_CALL: Final[Instruction] = (_RET, 0, 0, ERRNO | ENOSYS)
_END_PROCESS: Final[Instruction] = (_RET, 0, 0, KILL_PROCESS)
LAST_KNOWN: Final = 462

NEVER: Final[dict[str, tuple[int, int]]] = {
    "_sysctl": (156, -1), "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89),
    "add_key": (248, 217), "adjtimex": (159, 171), "bind": (49, 200), "bpf": (321, 280),
    "capset": (126, 91), "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "connect": (42, 203), "create_module": (174, -1), "delete_module": (176, 106), "execve": (59, 221),
    "execveat": (322, 281), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "finit_module": (313, 273), "fork": (57, -1), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "get_kernel_syms": (177, -1), "getpeername": (52, 205),
    "getsockname": (51, 204), "getsockopt": (55, 209), "init_module": (175, 105),
    "inotify_init": (253, -1), "inotify_init1": (294, 26), "io_cancel": (210, 3), "io_destroy": (207, 1),
    "io_getevents": (208, 4), "io_pgetevents": (333, 292), "io_setup": (206, 0), "io_submit": (209, 2),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "ioperm": (173, -1), "iopl": (172, -1), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446), "listen": (50, 201), "lookup_dcookie": (212, 18),
    "mbind": (237, 235), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mknod": (133, -1), "mknodat": (259, 33), "modify_ldt": (154, -1),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186),
    "msgrcv": (70, 188), "msgsnd": (69, 189), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "query_module": (178, -1), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "recvfrom": (45, 207), "recvmmsg": (299, 243), "recvmsg": (47, 212),
    "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "seccomp": (317, 277), "semctl": (66, 191), "semget": (64, 190),
    "semop": (65, 193), "semtimedop": (220, 192), "sendmmsg": (307, 269), "sendmsg": (46, 211),
    "sendto": (44, 206), "set_mempolicy": (238, 237), "setdomainname": (171, 162), "setfsgid": (123, 152),
    "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159), "sethostname": (170, 161),
    "setns": (308, 268), "setpgid": (109, 154), "setpriority": (141, 140), "setregid": (114, 143),
    "setresgid": (119, 149), "setresuid": (117, 147), "setreuid": (113, 145), "setrlimit": (160, 164),
    "setsid": (112, 157), "setsockopt": (54, 208), "settimeofday": (164, 170), "setuid": (105, 146),
    "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194), "shutdown": (48, 210),
    "socket": (41, 198), "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224),
    "sync": (162, 81), "syncfs": (306, 267), "sysfs": (139, -1), "syslog": (103, 116), "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97), "uselib": (134, -1), "userfaultfd": (323, 282), "ustat": (136, -1),
    "vfork": (58, -1), "vhangup": (153, 58),
}  # fmt: skip
"""The network, new processes, other processes, mounts, the kernel, its keys and its clock, shared memory."""

OWNERS: Final[dict[str, tuple[int, int]]] = {
    "chmod": (90, -1), "chown": (92, -1), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54), "fremovexattr": (199, 16),
    "fsetxattr": (190, 7), "futimesat": (261, -1), "lchown": (94, -1), "lremovexattr": (198, 15),
    "lsetxattr": (189, 6), "removexattr": (197, 14), "setxattr": (188, 5), "truncate": (76, 45),
    "utime": (132, -1), "utimensat": (280, 88), "utimes": (235, -1),
}  # fmt: skip
"""Changes that the owner of a file can make by its path, which landlock does not prevent."""

CLONE: Final = (56, 220)
CLONE3: Final = (435, 435)
KILL: Final = (62, 129)
TGKILL: Final = (234, 131)
PRCTL: Final = (157, 167)
PRLIMIT64: Final = (302, 261)
FCNTL: Final = (72, 25)
IOCTL: Final = (16, 29)


def filter_for(machine: str, pid: int, *, owners: bool) -> bytes:
    """Return the program for the process `pid`; with `owners`, it also denies the calls in `OWNERS`."""
    arch, column = _ARCHES[machine]
    refused: Mapping[str, tuple[int, int]] = {**NEVER, **(OWNERS if owners else {})}
    program = [
        *((_LD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), _END_PROCESS),
        *((_LD, 0, 0, _NUMBER), (_JGE, 0, 1, _X32), _END_PROCESS),
        *((_JGE, 0, 1, LAST_KNOWN + 1), _NO_SUCH_CALL),
        *_by_arguments(column, pid),
    ]
    for numbers in refused.values():
        if numbers[column] >= 0:
            program += [(_JEQ, 0, 1, numbers[column]), _REFUSE_CALL]
    return b"".join(struct.pack("=HBBI", *one) for one in (*program, _ALLOW_CALL))


def knows(machine: str) -> bool:
    """Return whether there is a filter for this architecture."""
    return machine in _ARCHES


def install(program: bytes) -> None:
    """Install the filter in this process, irrevocably."""
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges(libc)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls cannot be installed")


def no_new_privileges(libc: ctypes.CDLL) -> None:
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _by_arguments(column: int, pid: int) -> list[Instruction]:
    """Return the rules for calls that depend on their arguments. Each leaves the call's number loaded."""
    flags, limits = _argument(0), (_argument(0), _argument(2), _argument(2) + 4)
    threads_only = [
        *((_LD, 0, 0, flags), (_AND, 0, 0, _CLONE_THREAD), (_JEQ, 4, 0, 0)),
        *((_LD, 0, 0, flags), (_AND, 0, 0, _CLONE_NAMESPACES), (_JEQ, 0, 1, 0)),
        *(_ALLOW_CALL, _REFUSE_CALL),
    ]
    # A process may read its own limits: the pid argument is 0, and the pointer to new limits is null.
    reads_only: list[Instruction] = []
    for at, offset in enumerate(limits):
        reads_only += [(_LD, 0, 0, offset), (_JEQ, 0, 5 - 2 * at, 0)]
    rules = (
        (CLONE3, [_NO_SUCH_CALL]),
        (CLONE, threads_only),
        (KILL, _if_argument(0, (pid,), _ALLOW_CALL, _REFUSE_CALL)),
        (TGKILL, _if_argument(0, (pid,), _ALLOW_CALL, _REFUSE_CALL)),
        (PRCTL, _if_argument(0, _PR_NAMES, _ALLOW_CALL, _REFUSE_CALL)),
        (PRLIMIT64, [*reads_only, _ALLOW_CALL, _REFUSE_CALL]),
        (FCNTL, _if_argument(1, _FCNTL_NEVER, _REFUSE_CALL, _ALLOW_CALL)),
        (IOCTL, _if_argument(1, _IOCTL_NEVER, _REFUSE_CALL, _ALLOW_CALL)),
    )
    return [one for call, rule in rules for one in ((_JEQ, 0, len(rule), call[column]), *rule)]


def _if_argument(
    index: int, values: tuple[int, ...], then: Instruction, otherwise: Instruction
) -> list[Instruction]:
    tests = [(_JEQ, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [(_LD, 0, 0, _argument(index)), *tests, otherwise, then]


def _argument(index: int) -> int:
    """Return the offset of the lower half of an argument; both architectures are little endian."""
    return 16 + 8 * index
