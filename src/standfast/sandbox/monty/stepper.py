"""Steps the engine through a run, answering what needs no decision.

The engine stops wherever guest code needs the host. Names of capabilities, calls of unknown names and
requests to the operating system are answered here; calls of capabilities, sleeps and blocked tasks are handed
on as steps.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Final, get_args

import msgspec

from standfast.errors import Code, ErrorObject, InvalidArgument, ValueTooLarge
from standfast.model.bounds import check_bounds
from standfast.model.canonical import Json, to_json
from standfast.ports.cell_stepper import EngineCall, PrintedText, StepBlocked
from standfast.ports.code_engine import SLEEP, CallAnswer, CellFunctions
from standfast.sandbox.monty import engine, shadow
from standfast.sandbox.monty.dump import stand_ins
from standfast.sandbox.monty.feeding import feed_through, source_name, source_number, stub
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.program import MARK_NAME
from standfast.sandbox.monty.steps import EngineStep, Finished, Unreadable, read_arguments, read_value
from standfast.sandbox.monty.surroundings import MAX_RANDOM_BYTES, Surroundings
from standfast.sandbox.monty.values import first_foreign, may_hold_stand_ins, type_of_stand_in
from standfast.sandbox.monty.workers import SMALL_FRAME_BYTES, TINY_FRAME_BYTES, MontyWorker
from standfast.sandbox.run_errors import argument_not_json, request_too_large

_SLEEP: Final = "system.sleep"
_ASYNC_SLEEP: Final = "system.async_sleep"
_BRIEF_S: Final = 0.000_2
"""What the engine makes, sends and receives in this time, the host reads in a millisecond."""
_FILES_HINT: Final = "grant a mount and use read_text(), write_text() or list_dir()"
_SYSTEM_HINT: Final = "the sandbox shows guest code nothing of the machine; pass values as inputs"


class ForeignArgument(Exception):
    """An argument holds a value of this type, which has no JSON form."""


class Stepper:
    """The engine's side of one run. `call_errors` tells which of our errors an exception of the guest is."""

    def __init__(self, plan: RunPlan, functions: CellFunctions, around: Surroundings) -> None:
        self._plan = plan
        self._functions = functions
        self._around = around
        self._worker: MontyWorker
        self._asked_s = 0.0
        self.standing: engine.FunctionSnapshot | engine.FutureSnapshot | None = None
        self.call_errors: dict[tuple[str, str], ErrorObject] = {}

    def begin(self, worker: MontyWorker, output: PrintedText) -> EngineStep:
        """Run to the first thing that needs the host."""
        self._worker = worker
        self._around.draws = 0  # a second attempt sees what the first saw
        program, kept = self._plan.program, self._plan.kept
        marked = program.result_mode == "maybe" and program.reads_result
        if kept or marked:
            hide = "result" in kept and program.result_mode == "maybe" and not program.reads_result
            mark = f"{MARK_NAME} = []\n" if marked else ""
            feed_through(worker, mark + shadow.keep(kept, unbind=["result"] if hide else []))
        try:
            return self.advance(self._fed(worker, program.fed, output))
        except engine.MontySyntaxError:
            if program.unnamed is None:
                raise
        self._plan.program = msgspec.structs.replace(
            program, fed=program.unnamed, ends_with_value=False, inserted=()
        )
        return self.advance(self._fed(worker, program.unnamed, output))

    def _fed(self, worker: MontyWorker, code: str, output: PrintedText) -> Any:
        """Feed the code of the run. The engine numbers its sources, also those that it refuses."""
        self._plan.filename = source_name(worker.next_input)
        worker.next_input += 1
        self._asked_s = time.perf_counter()
        return worker.feed(code, inputs=self._plan.inputs or None, print_callback=output)

    def reload(self, worker: MontyWorker, output: PrintedText) -> EngineStep:
        """Load a parked run and find what it stands at."""
        self._worker = worker
        worker.next_input = source_number(self._plan.filename) + 1
        self._asked_s = time.perf_counter()
        return self.advance(worker.session.load_snapshot(self._plan.paused_dump, print_callback=output))

    def answer(self, call_id: int, answer: CallAnswer) -> EngineStep:
        """Give the call that the code stands at its result, or one that it is blocked on."""
        standing, result = self.standing, self._result(answer)
        self._asked_s = time.perf_counter()
        if isinstance(standing, engine.FutureSnapshot):
            return self.advance(standing.resume({call_id: result}))
        assert standing is not None
        return self.advance(standing.resume(result))

    def promise(self) -> EngineStep:
        """Give the call that the code stands at a future instead of its result."""
        assert isinstance(self.standing, engine.FunctionSnapshot)
        self._asked_s = time.perf_counter()
        return self.advance(self.standing.resume({"future": ...}))

    def advance(self, snapshot: Any) -> EngineStep:
        """Answer what needs no decision, up to the next thing that does."""
        self.standing = None
        while True:
            if isinstance(snapshot, engine.MontyComplete):
                if not self._is_small():
                    return Finished(None, unread=True)
                return Finished(read_value(functools.partial(getattr, snapshot, "output")))
            if isinstance(snapshot, engine.FutureSnapshot):
                self.standing = snapshot
                return StepBlocked(snapshot.pending_call_ids)
            if isinstance(snapshot, engine.NameLookupSnapshot):
                snapshot = self._on_name(snapshot, snapshot.variable_name)
                continue
            step = self._on_function(snapshot)
            if isinstance(step, EngineCall):
                self.standing = snapshot
                return step
            snapshot = step

    def _is_small(self) -> bool:
        """Whether what the engine hands over can be made Python objects of at once.

        What it made and sent within the blink of an eye is small, unless tuples share their parts.
        """
        plain = self._plan.plain_keys
        if plain and time.perf_counter() - self._asked_s < _BRIEF_S:
            return True
        return self._worker.sent_bytes() <= (SMALL_FRAME_BYTES if plain else TINY_FRAME_BYTES)

    def _on_name(self, snapshot: engine.NameLookupSnapshot, name: str) -> Any:
        if name in self._functions:
            return snapshot.resume(value=stub(name))
        try:
            value = self._around.load(name)
        except LookupError:
            return snapshot.resume()
        if name not in self._plan.borrowed:
            self._plan.borrowed.append(name)
        return snapshot.resume(value=value)

    def _on_function(self, snapshot: engine.FunctionSnapshot) -> Any:
        name = str(snapshot.function_name)
        if snapshot.is_os_function:
            return self._on_system_call(snapshot, name)  # the engine has checked the types of its arguments
        if name not in self._functions:
            return self._refuse_unknown(snapshot, name)
        stands = not self._is_awaited(snapshot, name)
        args: Any = []
        kwargs: Any = {}
        problem: ErrorObject | None = None
        try:
            args, kwargs = self._arguments(snapshot, name)
        except ForeignArgument as foreign:
            problem = argument_not_json(name, str(foreign))
        except ValueTooLarge as error:
            problem = request_too_large(name, error.limit)
        return EngineCall(
            id=snapshot.call_id, name=name, args=args, kwargs=kwargs, problem=problem, stands=stands
        )

    def _arguments(self, snapshot: engine.FunctionSnapshot, name: str) -> tuple[Json, Json]:
        """Read the arguments of a call as JSON; raise `ForeignArgument` or `ValueTooLarge`."""
        max_bytes = self._functions.capability(name).limits.max_request_bytes
        given = read_arguments(snapshot, self._worker, small=self._is_small(), max_bytes=max_bytes)
        if isinstance(given, Unreadable):
            if given.too_large is not None:
                raise ValueTooLarge(given.too_large)
            raise ForeignArgument(given.foreign)
        args, kwargs = list(given[0]), given[1]
        check_bounds([args, kwargs], max_bytes)
        values = [*args, *kwargs.values()]
        if may_hold_stand_ins(values, self._functions) and (found := stand_ins(self._worker.dump(snapshot))):
            raise ForeignArgument(type_of_stand_in(found[0]))
        try:
            clean, _ = to_json([args, kwargs])
        except InvalidArgument:
            raise ForeignArgument(str(first_foreign([args, kwargs]))) from None
        return clean[0], clean[1]

    def _on_system_call(self, snapshot: engine.FunctionSnapshot, name: str) -> Any:
        if name in (_SLEEP, _ASYNC_SLEEP):
            seconds = max(0.0, float(snapshot.args[0])) if snapshot.args else 0.0
            return EngineCall(
                id=snapshot.call_id, name=SLEEP, kwargs={"seconds": seconds}, stands=name == _SLEEP
            )
        if name in ("time.time", "datetime.now", "date.today"):
            return snapshot.resume({"return_value": self._around.moment(name, snapshot.args)})
        if name == "os.urandom":
            count = int(snapshot.args[0])
            if count > MAX_RANDOM_BYTES:
                message = f"at most {MAX_RANDOM_BYTES} random bytes at once"
                return snapshot.resume({"exc_type": "ValueError", "message": message})
            return snapshot.resume({"return_value": self._around.random_bytes(count)})
        if name.startswith("import"):
            return snapshot.resume_not_handled()
        error = ErrorObject(
            code=Code.PERMISSION_DENIED,
            message=f"guest code may not use {name}",
            hint=_FILES_HINT if name == "open" or name.startswith("Path.") else _SYSTEM_HINT,
        )
        self.call_errors["PermissionError", error.message] = error
        return snapshot.resume({"exc_type": "PermissionError", "message": error.message})

    def _refuse_unknown(self, snapshot: engine.FunctionSnapshot, name: str) -> Any:
        message = f"name {name!r} is not defined"
        hint = self._functions.suggest(name) or "list_tools() names what can be called"
        error = ErrorObject(
            code=Code.UNKNOWN_TOOL, message=f"{name}() is neither defined nor a capability", hint=hint
        )
        self.call_errors["NameError", message] = error
        return snapshot.resume({"exc_type": "NameError", "message": message})

    def _is_awaited(self, snapshot: engine.FunctionSnapshot, name: str) -> bool:
        """Whether guest code will await the call, as its syntax tells."""
        if snapshot.allow_eager_await:
            return True
        place = snapshot.position
        here = place.filename == self._plan.filename
        awaited = self._plan.program.awaited if here else self._plan.sites.get(place.filename, ())
        if awaited is None or place.filename == "<string>":
            return self._functions.is_async(name)
        return (place.start, place.end) in awaited

    def _result(self, answer: CallAnswer) -> Any:
        seen = answer.exception
        if seen is None:
            return {"return_value": answer.value}
        kind = seen.type if seen.type in _exceptions() else "RuntimeError"
        if answer.error is not None:
            self.call_errors[kind, seen.message] = answer.error
        return {"exc_type": kind, "message": seen.message}


@functools.lru_cache(maxsize=1)
def _exceptions() -> frozenset[str]:
    """The exceptions that the engine knows by name."""
    return frozenset(get_args(engine.ExcType))
