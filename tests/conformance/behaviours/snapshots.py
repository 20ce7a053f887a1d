"""Sessions as bytes: stored, copied, continued elsewhere, refused."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from behaviours.behaviour import Behaviour
from behaviours.stage import Host, Stage
from standfast import BlockingSandbox
from standfast.errors import InvalidArgument, SnapshotRefused
from standfast.sandbox.snapshots import SnapshotCodec


def _refused(stage: Stage, data: bytes, code: str) -> None:
    assert not stage.box.can_restore(data)
    with pytest.raises(SnapshotRefused) as caught:
        stage.box.restore(data, session=stage.other())
    assert caught.value.code == code


def _restored(stage: Stage) -> None:
    bind, change, read = stage.texts
    stage.value(bind)
    name = stage.box.snapshot(stage.session)
    stage.value(change)
    copy = stage.other()
    stage.box.restore(name, session=copy)
    assert stage.value(read, session=copy) == [1]
    assert stage.value(read) == [1, 2]
    stage.box.restore(name)
    assert stage.value(read) == [1]


def _forked(stage: Stage) -> None:
    bind, change, read = stage.texts
    stage.value(bind)
    fork = stage.box.fork(stage.session, stage.other())
    stage.value(change)
    assert (stage.value(read), stage.value(read, session=fork)) == ([1, 2], [1])


def _elsewhere(stage: Stage) -> None:
    """Create the session in one sandbox and use it in another, as two processes would."""
    make, use = stage.texts
    stage.here().value(make)
    assert stage.there().value(use) == [1, 2]


def _mid_run(stage: Stage) -> None:
    code, read = stage.texts
    here, there = stage.here(), stage.there()
    (asked,) = here.waits(code)
    data = here.box.export_snapshot(here.session)
    assert here.box.approve(asked.approval_id).status == "ok"
    assert here.done == [("add", 1, 1), ("A", 100)]
    copy = there.other()
    there.box.restore(data, session=copy)
    (again,) = there.asked(copy)
    assert again.approval_id != asked.approval_id
    done = there.box.approve(again.approval_id)
    assert (done.status, done.result, there.done) == ("ok", [2, "paid 100 for A"], [("A", 100)])
    assert there.value(read, session=copy) == 2


def _tampered(stage: Stage) -> None:
    stage.value(stage.code)
    data = stage.box.export_snapshot(stage.session)
    for place in (0, 9, 20, len(data) // 2, len(data) - 1):
        changed = bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]])
        _refused(stage, changed, "SNAPSHOT_CORRUPT")
    _refused(stage, data[:-1], "SNAPSHOT_CORRUPT")
    assert stage.box.can_restore(data)


def _another_key(stage: Stage) -> None:
    here = stage.here()
    here.value(stage.code)
    _refused(stage, here.box.export_snapshot(here.session), "SNAPSHOT_CORRUPT")


def _another_build(stage: Stage) -> None:
    here = stage.here()
    here.value(stage.code)
    codec = SnapshotCodec(here.snapshot_key())
    header, state = codec.open(here.box.export_snapshot(here.session))
    forged = codec.seal(msgspec.structs.replace(header, engine_version="another"), state)
    _refused(here, forged, "SNAPSHOT_VERSION_MISMATCH")


def _another_engines_state(stage: Stage) -> None:
    """Check that a validly signed state under the name of another engine is not accepted as that engine's."""
    here = stage.here()
    other = next(engine for engine in ("quickjs", "cpython") if engine != stage.engine)
    elsewhere = stage.host_at(other, "here")
    theirs = f"{stage.session}-theirs"
    elsewhere.box.run("1", session=theirs)
    named = SnapshotCodec(_key_of(elsewhere)).open(elsewhere.box.export_snapshot(theirs))[0]
    here.value(stage.code)
    header, state = SnapshotCodec(here.snapshot_key()).open(here.box.export_snapshot(here.session))
    header = msgspec.structs.replace(header, engine=named.engine, engine_version=named.engine_version)
    forged = SnapshotCodec(_key_of(elsewhere)).seal(header, state)
    with pytest.raises(SnapshotRefused):
        elsewhere.box.restore(forged, session=f"{theirs}-target")


def _key_of(host: Host) -> bytes:
    return (Path(host.options["data_dir"]) / "snapshot.key").read_bytes()


def _session_of_another_engine(stage: Stage) -> None:
    other = "typescript" if stage.language == "python" else "python"
    stage.value(stage.code)
    taken = stage.other()
    stage.box.run("1", session=taken, language=other)
    with pytest.raises(InvalidArgument) as caught:
        stage.box.restore(stage.box.snapshot(stage.session), session=taken)
    assert caught.value.hint == "restore it into another session"


def _other_tools(stage: Stage) -> None:
    here = stage.here()
    here.value(stage.code)
    data = here.box.export_snapshot(here.session)
    fewer = {**here.host.options, "tools": here.host.options["tools"][1:]}
    with BlockingSandbox(**fewer) as elsewhere, pytest.raises(SnapshotRefused) as caught:
        elsewhere.restore(data, session="target")
    assert caught.value.code == "SNAPSHOT_CAPABILITY_MISMATCH"


def _of_a_result(stage: Stage) -> None:
    code, change, read = stage.texts
    name = stage.run(code, snapshot=True).snapshot_id
    assert name is not None
    stage.value(change)
    stage.box.restore(name)
    assert stage.value(read) == [1]


NO_GENERATORS = {"monty": "UNSUPPORTED_FEATURE", "cpython": "RUNTIME_ERROR", "auto": "RUNTIME_ERROR"}
LIST_PY = ("x = [1]", "x.append(2)", "x")
LIST_TS = ("const x = [1]", "x.push(2)", "x")

SNAPSHOTS = [
    Behaviour(
        name="a session is restored in place or under another name", check=_restored, py=LIST_PY, ts=LIST_TS
    ),
    Behaviour(name="a run can leave a snapshot with its result", check=_of_a_result, py=LIST_PY, ts=LIST_TS),
    Behaviour(name="a fork is a copy", check=_forked, py=LIST_PY, ts=LIST_TS),
    Behaviour(
        name="variables are restored elsewhere",
        check=_elsewhere,
        py=("x = {'a': [1, 2], 'b': {3}}", "x['a']"),
        ts=("const x = {a: [1, 2], b: new Set([3])}", "x.a"),
    ),
    Behaviour(
        name="functions are restored elsewhere",
        check=_elsewhere,
        py=("def f(n):\n    return [*f(n - 1), n] if n else []\ndef g():\n    return f(2)", "g()"),
        ts=(
            "const f = (n: number): number[] => n ? [...f(n - 1), n] : []\nfunction g() { return f(2) }",
            "g()",
        ),
    ),
    Behaviour(
        name="classes and objects are restored elsewhere",
        check=_elsewhere,
        py=(
            "class A:\n    n = 1\n    def __init__(self, v):\n        self.v = v\n    def both(self):\n"
            "        return [self.n, self.v]\na = A(2)",
            "a.both()",
        ),
        ts=(
            "class A { static n = 1; #v; constructor(v: number) { this.#v = v }\n"
            "  both() { return [A.n, this.#v] } }\nconst a = new A(2)",
            "a.both()",
        ),
    ),
    Behaviour(
        name="classes with base classes are restored elsewhere",
        check=_elsewhere,
        py=(
            "class A:\n    def v(self):\n        return [1]\nclass B(A):\n    def v(self):\n"
            "        return [*super().v(), 2]\nb = B()",
            "b.v()",
        ),
        ts=(
            "class A { v() { return [1] } }\nclass B extends A { v() { return [...super.v(), 2] } }\nconst b = new B()",
            "b.v()",
        ),
        refused={"monty": "UNSUPPORTED_FEATURE"},
    ),
    Behaviour(
        name="a closure is restored elsewhere",
        check=_elsewhere,
        py=(
            "def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n"
            "    return up\nup = make()\nx = [up()]",
            "[*x, up()]",
        ),
        ts=(
            "const make = () => { let n = 0; return () => ++n }\nconst up = make()\nconst x = [up()]",
            "[...x, up()]",
        ),
    ),
    Behaviour(
        name="two names of one list share it after being restored elsewhere",
        check=_elsewhere,
        py=("a = [1]\nb = a", "a.append(2)\nb"),
        ts=("const a = [1]\nconst b = a", "a.push(2)\nb"),
    ),
    Behaviour(
        name="a running generator is restored elsewhere",
        check=_elsewhere,
        py=("def g():\n    yield from [1, 2, 3]\nit = g()\nx = next(it)", "[x, next(it)]"),
        ts=(
            "function* g() { yield* [1, 2, 3] }\nconst it = g()\nconst x = it.next().value",
            "[x, it.next().value]",
        ),
        refused=NO_GENERATORS,
    ),
    Behaviour(
        name="a waiting run is restored elsewhere, requests approval again and repeats no call",
        check=_mid_run,
        py=("x = add(1)\n[x, refund('A')]", "x"),
        ts=("const x = await add(1)\n;[x, await refund('A')]", "x"),
    ),
    Behaviour(
        name="a modified or truncated snapshot is rejected", check=_tampered, py="x = 1", ts="const x = 1"
    ),
    Behaviour(
        name="a snapshot signed with another key is rejected",
        check=_another_key,
        py="x = 1",
        ts="const x = 1",
    ),
    Behaviour(
        name="a snapshot of another build is rejected", check=_another_build, py="x = 1", ts="const x = 1"
    ),
    Behaviour(
        name="the state of another engine is rejected",
        check=_another_engines_state,
        py="x = 1",
        ts="const x = 1",
    ),
    Behaviour(
        name="a session on another engine rejects the snapshot",
        check=_session_of_another_engine,
        py="x = 1",
        ts="const x = 1",
    ),
    Behaviour(
        name="a snapshot made with other tools is rejected", check=_other_tools, py="x = 1", ts="const x = 1"
    ),
]
