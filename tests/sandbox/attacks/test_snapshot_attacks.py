"""Attacks through stored data: snapshots, states and waiting runs of both engines.

An attacker who has the key can write anything into a snapshot; even then nothing runs outside a guest.
"""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

import os
import pickle
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import BlockingSandbox, tool
from standfast.errors import Code, SnapshotRefused, StandfastError
from standfast.model.limits import SessionLimits
from standfast.model.session import SNAPSHOT_VERSION
from standfast.ports.code_engine import CallAnswer, CellEnd, CellPause, CellRequest
from standfast.sandbox import snapshots
from standfast.sandbox.cell_lifecycle import MadeCall, PausedCell, decode_cell, encode_cell
from standfast.sandbox.cpython import state as python_state
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.quickjs import state as script_state
from standfast.sandbox.quickjs.cell_engine import QuickJsCells
from standfast.sandbox.quickjs.frames import Image
from standfast.sandbox.snapshots import SnapshotCodec, SnapshotHeader

pytestmark = pytest.mark.slow

LIMITS = {"cpu_ms": 300, "wall_ms": 900, "memory_mb": 32}
PLENTY = {"cpu_ms": 4_000, "wall_ms": 5_000, "memory_mb": 64}
CODE = {"quickjs": "var x = [1, 'text', { k: 2.5 }]; x[0]", "cpython": "x = [1, 'text', {'k': 2.5}]\nx[0]"}
WAITS = {"quickjs": "var y = 1; await pay(7)", "cpython": "y = 1\npay(7)"}
_paid: list[int] = []


@tool(approval="manual")
def pay(amount: int) -> str:
    """Pay; guest code must not do so without an approval."""
    _paid.append(amount)
    return "paid"


class Vault:
    """A sandbox on disk whose key the attacker has."""

    def __init__(self, engine: str, directory: Path) -> None:
        self.engine = engine
        language = "typescript" if engine == "quickjs" else "python"
        self.box = BlockingSandbox(
            tools=[pay], engine=engine, language=language, data_dir=directory, workers=2
        )
        self._directory = directory

    @property
    def codec(self) -> SnapshotCodec:
        return SnapshotCodec((self._directory / "snapshot.key").read_bytes())

    def stored(self, session: str) -> tuple[SnapshotHeader, bytes]:
        """Return the stored form of a session with variables."""
        assert self.box.run(CODE[self.engine], session=session).result == 1
        return self.codec.open(self.box.export_snapshot(session))

    def forge(self, header: SnapshotHeader, state: bytes) -> bytes:
        return self.codec.seal(header, state)

    def outcome(self, data: bytes, session: str, code: str = "x[0]") -> str:
        """Return the error code of restoring and running, None if both succeed."""
        try:
            self.box.restore(data, session=session)
        except StandfastError as refused:
            return str(refused.code)
        began = time.monotonic()
        result = self.box.run(code, session=session, limits=LIMITS)
        assert time.monotonic() - began < LIMITS["wall_ms"] / 1000 + 2
        return "" if result.error is None else str(result.error.code)

    def is_well(self) -> None:
        assert self.box.run(CODE[self.engine], session="bystander").result == 1


@pytest.fixture(scope="module", params=["quickjs", "cpython"])
def vault(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nothing_left: None
) -> Iterator[Vault]:
    made = Vault(request.param, tmp_path_factory.mktemp("vault"))
    with made.box:
        yield made


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, nothing_left: None) -> Iterator[Vault]:
    made = Vault("cpython", tmp_path_factory.mktemp("python"))
    with made.box:
        yield made


# ── without the key ──────────────────────────────────────────────────────────────────────────────────


def test_every_flipped_bit_is_refused(vault: Vault, sid: str) -> None:
    """Ours: bare engines loaded a third of such snapshots."""
    vault.stored(sid)
    data = vault.box.export_snapshot(sid)
    chance = random.Random(7)
    places = {*range(60), *(chance.randrange(len(data)) for _ in range(150)), len(data) - 1}
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << chance.randrange(8)
        assert not vault.box.can_restore(bytes(flipped)), at
    assert vault.box.can_restore(data)
    vault.is_well()


def test_every_truncated_or_extended_snapshot_is_refused(vault: Vault, sid: str) -> None:
    """Ours: the size is checked before anything is read."""
    vault.stored(sid)
    data = vault.box.export_snapshot(sid)
    sizes = [*range(0, 60, 7), *range(60, len(data), len(data) // 40), len(data) - 1]
    for wrong in [*(data[:size] for size in sizes), data + b"\0", data + data, data[1:]]:
        assert vault.outcome(wrong, f"{sid}-x") == Code.SNAPSHOT_CORRUPT
    vault.is_well()


def test_a_snapshot_signed_with_another_key_is_refused(vault: Vault, sid: str) -> None:
    """Ours: each installation signs snapshots with its own key."""
    header, state = vault.stored(sid)
    assert vault.outcome(SnapshotCodec(b"k" * 32).seal(header, state), sid) == Code.SNAPSHOT_CORRUPT
    vault.is_well()


# ── with the key ─────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_of_another_engine_or_build_is_refused(vault: Vault, sid: str) -> None:
    """Seed: SNAPSHOT_VERSION_MISMATCH, whichever part of the snapshot reveals it."""
    header, state = vault.stored(sid)
    for change in (
        {"engine_version": "9.9"},
        {"engine_version": ""},
        {"engine": "monty"},
        {"engine": "auto"},
    ):
        forged = vault.forge(msgspec.structs.replace(header, **change), state)
        assert vault.outcome(forged, f"{sid}-x") in {Code.SNAPSHOT_VERSION_MISMATCH, Code.INVALID_ARGUMENT}
    if vault.engine == "quickjs":
        other = state[:4] + bytes(16) + state[20:]
    else:
        known = python_state.decode_state(state)
        assert known is not None
        other = python_state.encode_state(msgspec.structs.replace(known, version="3.99"))
    assert vault.outcome(vault.forge(header, other), f"{sid}-x") == Code.SNAPSHOT_VERSION_MISMATCH
    vault.is_well()


def test_an_unknown_engine_in_a_header_is_refused(vault: Vault, sid: str) -> None:
    """Ours: the engine's name in a header is untrusted."""
    header, state = vault.stored(sid)
    for name in ("", "nope", "../quickjs", "cpython\0", "os.system"):
        forged = vault.forge(msgspec.structs.replace(header, engine=name), state)
        assert vault.outcome(forged, f"{sid}-x") in {Code.SNAPSHOT_VERSION_MISMATCH, Code.INVALID_ARGUMENT}
    vault.is_well()


RUBBISH = [
    b"\xc1", b"rubbish", b"\x80", b"\x90", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff" + b"x" * 100, b"\x91" * 100_000, b"\x81\xa1x" * 50_000, b"SFQJ", b"SFQJ" + bytes(20), bytes(1000),
    b"cos\nsystem\n(S'touch /tmp/x'\ntR.", pickle.dumps({"x": 1}), b"\x00asm\x01\0\0\0",
    msgspec.msgpack.encode({"engine": "cpython", "version": "3.11", "format": 1}),
    msgspec.msgpack.encode({"engine": "cpython", "version": python_state.VERSION, "format": 1, "payload": 7}),
    msgspec.msgpack.encode({"engine": ["cpython"], "version": {}, "format": "1"}),
]  # fmt: skip


def test_a_malformed_state_is_refused_even_if_signed(vault: Vault, sid: str) -> None:
    """Ours: wrong lengths, endless nesting and other formats are each refused with a typed error."""
    header, _ = vault.stored(sid)
    for data in RUBBISH:
        found = vault.outcome(vault.forge(header, data), f"{sid}-x")
        assert found in {Code.SNAPSHOT_CORRUPT, Code.SNAPSHOT_VERSION_MISMATCH}, (data[:20], found)
    vault.is_well()


def test_the_states_of_two_engines_cannot_be_swapped(vault: Vault, python: Vault, sid: str) -> None:
    """Ours: an engine does not read another engine's state."""
    header, state = vault.stored(sid)
    ours = {"quickjs": python, "cpython": vault}[vault.engine]
    _, theirs = ours.stored(f"{sid}-other")
    if vault.engine == "quickjs":
        found = vault.outcome(vault.forge(header, theirs), f"{sid}-x")
        assert found in {Code.SNAPSHOT_CORRUPT, Code.SNAPSHOT_VERSION_MISMATCH}
        assert python.outcome(python.forge(header, state), f"{sid}-x") != ""
    vault.is_well()


def test_a_forged_header_is_refused_or_harmless(vault: Vault, sid: str) -> None:
    """Ours: every field of a signed header is validated like any input."""
    header, state = vault.stored(sid)
    body = msgspec.to_builtins(header)
    lies: list[dict[str, Any]] = [
        {"meta": {**body["meta"], "id": "../../x"}}, {"meta": {**body["meta"], "language": "cobol"}},
        {"meta": {**body["meta"], "limits": {"memory_mb": -1}}}, {"meta": None}, {"capabilities": ["pay"]},
        {"capabilities": {"pay": "0"}}, {"capabilities": {"unknown": "0"}}, {"paused": {"run_id": 1}}, {"host": []},
    ]  # fmt: skip
    for lie in lies:
        forged = _resealed(vault.codec, msgspec.json.encode({**body, **lie}), state)
        assert vault.outcome(forged, f"{sid}-x") != "", lie
    vault.is_well()


def _resealed(codec: SnapshotCodec, body: bytes, state: bytes) -> bytes:
    """Return a snapshot with an arbitrary header, signed with the right key."""
    head = snapshots._HEAD.pack(snapshots._MAGIC, SNAPSHOT_VERSION, b"\0" * 32, len(body))
    signature = codec._sign(head + body + state)
    return head[:10] + signature + head[42:] + body + state


# ── pickles ──────────────────────────────────────────────────────────────────────────────────────────


class Runs:
    """An object that pickles as a call to `exec`."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> Any:
        return exec, (self.code,)


def payload(code: str) -> bytes:
    return pickle.dumps(({"x": Runs(code)}, {}))


def deep(size: int) -> bytes:
    """Return a pickle of nested lists."""
    return b"\x80\x04" + b"]" * size + b"a" * (size - 1) + b"."


PICKLES: dict[str, bytes] = {
    "writes a file": payload("open({mark!r}, 'w').close()"),
    "writes a file through the shell": payload("__import__('os').system('touch {mark}')"),
    "runs for ever": payload("while True: pass"),
    "allocates memory": payload("x = bytearray(10**9)"),
    "expands": pickle.dumps(({"x": Runs("globals()['x'] = [b'x' * 10**6 + bytes(n) for n in range(10**5)]")}, {})),
    "expands by references": b"\x80\x04]\x94(h\x00e" + b"(h\x00h\x00h\x00e" * 1000 + b".",
    "a huge length": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    "a huge frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    "a huge text": b"\x80\x04X\xff\xff\xff\x7f",
    "a huge memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "deep": deep(200_000),
    "exits": payload("__import__('os')._exit(0)"),
    "crashes": payload("import ctypes\nctypes.string_at(0)"),
    "forks": payload("__import__('os').fork()"),
    "changes the runner": payload("import sys\nsys.modules['standfast_guest.channel'].HostChannel.post = lambda *a: None"),
    "writes to the host's descriptors": payload("import os\nfor n in range(3, 9):\n    try: os.write(n, b'\\xff' * 99)\n    except OSError: pass"),
    "another value": pickle.dumps(42), "nothing": b"", "cut": payload("1")[:-3], "rubbish": os.urandom(64),
    "an old opcode": b"(S'x'\nio\n.", "no end": b"\x80\x04" + b"N" * 1000,
}  # fmt: skip


SLOW = {
    "runs for ever",
    "changes the runner",
    "expands",
    "deep",
    "crashes",
    "a huge text",
    "allocates memory",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PICKLES]
)
def test_a_pickle_has_no_effect_outside_the_jail(python: Vault, sid: str, tmp_path: Path, name: str) -> None:
    """Ours: SPEC §5; the host never unpickles anything, and a guest that does harms only itself."""
    mark = tmp_path / "mark"
    header, state = python.stored(sid)
    known = python_state.decode_state(state)
    assert known is not None
    data = PICKLES[name]
    if b"{mark" in data:
        data = payload(
            f"open({str(mark)!r}, 'w').close()"
            if b"!r" in data
            else f"__import__('os').system('touch {mark}')"
        )
    forged = python.forge(header, python_state.encode_state(msgspec.structs.replace(known, payload=data)))
    assert python.box.can_restore(forged)
    python.outcome(forged, f"{sid}-x", "1 + 1")
    python.outcome(forged, f"{sid}-x", "x")
    assert not mark.exists()
    python.is_well()
    assert python.box.run("x[0]", session=sid).result == 1


# ── waiting runs ─────────────────────────────────────────────────────────────────────────────────────

Engine = CPythonCells | QuickJsCells


@pytest.fixture(scope="module", params=["quickjs", "cpython"])
def engine(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Engine]:
    cells: Engine = QuickJsCells(capacity=2) if request.param == "quickjs" else CPythonCells(capacity=2)
    yield cells
    cells.close()


@pytest.fixture
def ask(engine: Engine, functions: Any) -> Callable[..., CellRequest]:
    def make(code: str = "", **options: Any) -> CellRequest:
        return CellRequest(
            key="s",
            code=code,
            limits=SessionLimits(**PLENTY),
            functions=functions,
            **options,
        )

    return make


def waiting(engine: Engine, ask: Callable[..., CellRequest]) -> tuple[str, bytes]:
    """Return the source of a run that waits for its second call, and its suspended bytes."""
    code = (
        "await add(1); await pay(2); 'end'" if isinstance(engine, QuickJsCells) else "add(1)\npay(2)\n'end'"
    )
    run = engine.open(ask(code))
    run.start()
    step = run.answer(1, CallAnswer(value=5))
    assert isinstance(step, CellPause)
    assert [call.name for call in step.calls] == ["pay"]
    return code, run.suspend()


def resume_run(engine: Engine, request: CellRequest, number: int = 2) -> CellEnd | str:
    """Resume a waiting run and return its end, or the code of its error."""
    try:
        run = engine.open(request)
        step = run.start()
        assert step == CellPause()
        step = run.answer(number, CallAnswer(value="ok"))
        made = 0
        while isinstance(step, CellPause) and made < 10:
            made += 1
            assert step.calls == (), "a call that was not made before is made again"
            run.close()
            return "waits"
        assert isinstance(step, CellEnd)
        return step
    except StandfastError as refused:
        return str(refused.code)


def test_a_waiting_run_with_altered_bytes_is_refused_or_harmless(
    engine: Engine, ask: Callable[..., CellRequest]
) -> None:
    """Ours: whatever the bytes, the host survives, and an unaltered run still resumes."""
    code, paused = waiting(engine, ask)
    chance = random.Random(11)
    for _ in range(40):
        at = chance.randrange(len(paused))
        flipped = paused[:at] + bytes([paused[at] ^ 1 << chance.randrange(8)]) + paused[at + 1 :]
        found = resume_run(engine, ask(code, paused=flipped))
        assert isinstance(found, (CellEnd, str))
    for cut in (b"\x80", paused[:10], paused[: len(paused) // 2], paused[:-1], paused + b"\0"):
        with pytest.raises(SnapshotRefused):
            engine.open(ask(code, paused=cut)).start()
    end = resume_run(engine, ask(code, paused=paused))
    assert isinstance(end, CellEnd)
    assert end.result == "end"


def changed(data: bytes, **fields: Any) -> bytes:
    """Return the suspended cell with *fields* replaced, either its own or those of the dump in it."""
    cell = decode_cell(data)
    assert cell is not None
    own = {name: fields.pop(name) for name in list(fields) if name in PausedCell.__struct_fields__}
    dump = python_state.encode_dump(msgspec.structs.replace(python_state.decode_dump(cell.dump), **fields))
    return encode_cell(msgspec.structs.replace(cell, **{"dump": dump, **own}))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "change",
    [
        {"code": "add(1)\npay(3)\n'end'"}, {"code": "add(9)\npay(2)\n'end'"}, {"code": "pay(2)\nadd(1)"},
        {"code": "add(1)"}, {"code": "while True: pass"}, {"code": "add(1)\nadd(1)\npay(2)"}, {"code": "1 +"},
        {"made": []}, {"answers": []}, {"calls": {}}, {"calls": {7: 7}}, {"at": 7}, {"at": None},
        {"answers": [(2, msgspec.json.encode(CallAnswer()))]}, {"answers": [(1, b"rubbish")]},
        {"answers": [(1, msgspec.json.encode(CallAnswer()))] * 50},
        {"made": [MadeCall(b"\0" * 16)] * 2}, {"made": [MadeCall(b"", b"rubbish")] * 2},
        {"calls_made": -5}, {"calls_made": 2**40}, {"wall_used_ms": -(2**40)}, {"wall_used_ms": 2**40},
        {"stdout": "x" * 10**6}, {"inputs": {"add": b"rubbish"}}, {"inputs": {"a b": b"1"}},
        {"loaded": {"pay": b"1"}}, {"began_ms": 2**62}, {"began_ms": -(2**62)}, {"state": b"rubbish"},
        {"seed": "x" * 10**5}, {"memory_peak_bytes": -1},
    ],
    ids=lambda change: repr(change)[:50],
)  # fmt: skip
def test_a_replay_that_differs_from_its_record_makes_no_new_call(
    functions: Any, python_cells: CPythonCells, change: dict[str, Any]
) -> None:
    """Ours: a replay may only repeat recorded calls; any other call is not made."""

    def ask(code: str = "", **options: Any) -> CellRequest:
        return CellRequest(
            key="s",
            code=code,
            limits=SessionLimits(**{**PLENTY, "cpu_ms": 300}),
            functions=functions,
            **options,
        )

    code, paused = waiting(python_cells, ask)
    forged = changed(paused, **change)
    began = time.monotonic()
    found = resume_run(python_cells, ask(code, paused=forged))
    assert time.monotonic() - began < 5
    assert isinstance(found, str) or found.error is not None or found.result in ("end", None)
    end = resume_run(python_cells, ask(code, paused=paused))
    assert isinstance(end, CellEnd)
    assert end.result == "end"


def test_a_recorded_answer_that_cannot_be_decoded_is_refused(
    functions: Any, python_cells: CPythonCells
) -> None:
    """Bug: a library's exception escaped from the engine."""
    limits = SessionLimits(**PLENTY)
    request = CellRequest(
        key="s", code="add(1)\npay(2)", limits=limits, functions=functions,
        answer_now=lambda call: CallAnswer(value=1) if call.name == "add" else None,
    )  # fmt: skip
    run = python_cells.open(request)
    run.start()
    suspended = run.suspend()
    cell = decode_cell(suspended)
    assert cell is not None
    made = [msgspec.structs.replace(cell.made[0], answer=b"rubbish"), *cell.made[1:]]
    forged = changed(suspended, made=made)
    assert (
        resume_run(python_cells, msgspec.structs.replace(request, paused=forged), 1) == Code.SNAPSHOT_CORRUPT
    )


@pytest.fixture(scope="module")
def python_cells(nothing_left: None) -> Iterator[CPythonCells]:
    cells = CPythonCells(capacity=2)
    yield cells
    cells.close()


def test_a_forged_memory_image_is_refused_or_harmless(functions: Any, nothing_left: None) -> None:
    """Ours: lengths and offsets in an image are untrusted; nothing is written outside a guest."""
    cells = QuickJsCells(capacity=1)

    def run(code: str, **options: Any) -> CellEnd:
        limits = SessionLimits(**LIMITS)
        end = cells.open(
            CellRequest(key="s", code=code, limits=limits, functions=functions, **options)
        ).start()
        assert isinstance(end, CellEnd)
        return end

    state = run("var x = [1, 2, 3]").state
    assert state is not None
    known = script_state.decode_state(state)
    chance = random.Random(5)
    for number in range(40):
        data = bytearray(known.image.data)
        for _ in range(chance.choice((1, 8, 200))):
            at = chance.randrange(0 if number < 20 else len(data) // 2, len(data))
            data[at] = chance.randrange(256)
        image = Image(known.image.boot, bytes(data))
        forged = script_state.encode_state(script_state.QuickJsState(image, known.names, known.lines))
        try:
            run("x.map(n => n + 1).join()", state=forged)
        except StandfastError as refused:
            assert refused.code in set(Code)  # noqa: PT017
    assert run("x.join()", state=state).result == "1,2,3"
    cells.close()


def test_a_waiting_run_restored_twice_pays_once_per_decision(vault: Vault, sid: str) -> None:
    """Ours: SPEC §5; restoring an earlier snapshot never reuses a decision."""
    _paid.clear()
    result = vault.box.run(WAITS[vault.engine], session=sid)
    assert result.status == "waiting_for_approval"
    old = vault.box.export_snapshot(sid)
    (approval,) = vault.box.approvals(session=sid, pending=True)
    assert vault.box.approve(approval.approval_id).result == "paid"
    try:
        vault.box.restore(old, session=f"{sid}-again")
        vault.box.resume(f"{sid}-again")
    except StandfastError:
        pass
    with pytest.raises(StandfastError):
        vault.box.approve(approval.approval_id)
    assert _paid == [7]
    vault.is_well()
