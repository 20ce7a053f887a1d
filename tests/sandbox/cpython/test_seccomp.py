"""The system call filter, evaluated by a small interpreter of its program, for both architectures."""

from __future__ import annotations

import struct

import pytest

from standfast.sandbox.cpython.guest import seccomp

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
PID = 4242


def verdict(program: bytes, arch: int, number: int, *args: int) -> int:
    """Return the verdict of the kernel if it ran the program."""
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(*args, *[0] * (6 - len(args))))
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            loaded = struct.unpack_from("=I", data, value)[0]
        elif code == 0x54:
            loaded &= value
        elif code == 0x15:
            at += if_true if loaded == value else if_false
        elif code == 0x35:
            at += if_true if loaded >= value else if_false
        else:
            assert code == 0x06
            return int(value)


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


REFUSED = seccomp.ERRNO | seccomp.EPERM
ABSENT = seccomp.ERRNO | seccomp.ENOSYS


def test_every_named_call_is_refused(machine: str) -> None:
    """Ours: the filter matches the table."""
    for owners in (False, True):
        program = seccomp.filter_for(machine, PID, owners=owners)
        tables = {**seccomp.NEVER, **(seccomp.OWNERS if owners else {})}
        for name, numbers in tables.items():
            if (number := numbers[COLUMN[machine]]) >= 0:
                assert verdict(program, ARCH[machine], number) == REFUSED, name
    assert len(program) // 8 < 4096


def test_ordinary_calls_are_allowed(machine: str) -> None:
    """Ours: an interpreter must read, write, map memory and wait."""
    program = seccomp.filter_for(machine, PID, owners=False)
    ordinary = {
        "x86_64": (0, 1, 3, 9, 11, 12, 202, 228, 257, 262, 318, 334),
        "aarch64": (63, 64, 57, 222, 215, 98, 113),
    }
    for number in ordinary[machine]:
        assert verdict(program, ARCH[machine], number) == seccomp.ALLOW, number
    chmod = seccomp.OWNERS["fchmod"][COLUMN[machine]]
    assert verdict(program, ARCH[machine], chmod) == seccomp.ALLOW


def test_threads_are_allowed_and_processes_are_not(machine: str) -> None:
    """Seed: threads are permitted, new processes and namespaces are not."""
    program = seccomp.filter_for(machine, PID, owners=False)
    clone = seccomp.CLONE[COLUMN[machine]]
    thread = 0x3D0F00
    assert verdict(program, ARCH[machine], clone, thread) == seccomp.ALLOW
    for flags in (17, 0, 0x4111, thread | 0x10000000, thread | 0x40000000, thread | 0x20000):
        assert verdict(program, ARCH[machine], clone, flags) == REFUSED, hex(flags)
    assert verdict(program, ARCH[machine], seccomp.CLONE3[COLUMN[machine]]) == ABSENT


def test_a_process_may_signal_only_itself(machine: str) -> None:
    """Ours: `raise_signal` works, but `kill` on other processes does not."""
    program = seccomp.filter_for(machine, PID, owners=False)
    for call in (seccomp.KILL, seccomp.TGKILL):
        assert verdict(program, ARCH[machine], call[COLUMN[machine]], PID) == seccomp.ALLOW
        for other in (1, 0, PID + 1, 0xFFFFFFFF):
            assert verdict(program, ARCH[machine], call[COLUMN[machine]], other) == REFUSED


def test_limits_can_be_read_but_not_set(machine: str) -> None:
    """Ours: only the host sets limits, from outside."""
    program = seccomp.filter_for(machine, PID, owners=False)
    call = seccomp.PRLIMIT64[COLUMN[machine]]
    assert verdict(program, ARCH[machine], call, 0, 9, 0, 0x7FFF00001000) == seccomp.ALLOW
    for args in ((0, 9, 0x7FFF00001000), (0, 9, 0x7F << 32), (PID, 9, 0)):
        assert verdict(program, ARCH[machine], call, *args) == REFUSED
    prctl = seccomp.PRCTL[COLUMN[machine]]
    assert [verdict(program, ARCH[machine], prctl, option) for option in (15, 16, 1, 4, 22, 38)] == [
        seccomp.ALLOW, seccomp.ALLOW, REFUSED, REFUSED, REFUSED, REFUSED,
    ]  # fmt: skip


def test_newer_system_calls_do_not_exist(machine: str) -> None:
    """Ours: a newer kernel must not open a new way out."""
    program = seccomp.filter_for(machine, PID, owners=False)
    for number in (seccomp.LAST_KNOWN + 1, 500, 10_000):
        assert verdict(program, ARCH[machine], number) == ABSENT


def test_a_foreign_calling_convention_ends_the_process() -> None:
    """Ours: system call numbers have different meanings there."""
    program = seccomp.filter_for("x86_64", PID, owners=False)
    assert verdict(program, 0x40000003, 1) == seccomp.KILL_PROCESS
    assert verdict(program, ARCH["aarch64"], 63) == seccomp.KILL_PROCESS
    assert verdict(program, ARCH["x86_64"], 0x40000000 | 1) == seccomp.KILL_PROCESS


def test_other_architectures_have_no_filter() -> None:
    """Ours: an unknown architecture is rejected, not guessed."""
    assert seccomp.knows("x86_64")
    assert not seccomp.knows("riscv64")
