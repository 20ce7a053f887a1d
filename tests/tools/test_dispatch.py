"""The dispatcher, through which every call passes: limits, failures and approvals, on the host's side."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from performing import admit, perform

from standfast import BlockingSandbox, Capability, CapabilityLimits, RegisteredTool, auto_approval, tool
from standfast.errors import ToolError, UnknownTool
from standfast.model.canonical import digest_json
from standfast.model.capability import CallStatus, SettledCall, SideEffect
from standfast.ports.clock import Clock, SystemClock
from standfast.tools import Dispatcher, ToolRegistry, as_registered
from standfast.tools.registered_tool import Admitted, NeedsApproval
from standfast.tools.settlement import request_digest
from standfast.tools.threads import DaemonThreads

pytestmark = pytest.mark.slow


def _no_rule(*_: object) -> bool:
    raise AssertionError("no rule is asked")


class Host:
    """A dispatcher that a test calls as guest code would."""

    def __init__(self, *tools: object, clock: Clock | None = None, rule: Any = _no_rule) -> None:
        self.dispatcher = Dispatcher(
            ToolRegistry([as_registered(item) for item in tools]),
            threads=DaemonThreads("test-dispatch"),
            clock=clock or SystemClock(),
            evaluate_rule=rule,
        )

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exc: object) -> None:
        self.dispatcher.close()

    def call(self, name: str, *args: Any, call_id: int = 0, **kwargs: Any) -> SettledCall:
        admission = admit(self.dispatcher, name, list(args), kwargs, call_id=call_id)
        if isinstance(admission, Admitted):
            return perform(self.dispatcher, admission)
        assert isinstance(admission, SettledCall)
        return admission


def settle(candidate: object, *args: Any, **kwargs: Any) -> SettledCall:
    """Make one call to one tool."""
    with Host(candidate) as host:
        return host.call(as_registered(candidate).name, *args, **kwargs)


def code_of(settled: SettledCall) -> str:
    assert settled.record.error is not None, settled.value
    return settled.record.error.code


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_one_byte_above_its_limit_is_refused_and_not_executed() -> None:
    """Seed: max_request_bytes. Ours: the size is that of the arguments as JSON."""
    calls: list[str] = []
    size = len('[["' + "x" * 50 + '"],{}]')

    @tool(limits=CapabilityLimits(max_request_bytes=size))
    def f(text: str) -> None:
        calls.append(text)

    assert settle(f, "x" * 50).record.status is CallStatus.OK
    refused = settle(f, "x" * 51)
    assert code_of(refused) == "REQUEST_TOO_LARGE"
    assert calls == ["x" * 50]


def test_a_response_above_its_limit_is_refused() -> None:
    """Seed: max_response_bytes limits the result of a call."""

    @tool(limits=CapabilityLimits(max_response_bytes=12))
    def f(n: int) -> str:
        return "x" * n

    assert settle(f, 10).value == "x" * 10
    assert code_of(settle(f, 11)) == "RESPONSE_TOO_LARGE"


def test_a_response_of_a_hundred_megabytes_is_refused_and_not_passed_on() -> None:
    """Ours: SPEC §4; any return value of a tool becomes a typed failure."""

    @tool
    def f() -> str:
        return "x" * (100 << 20)

    settled = settle(f)
    assert code_of(settled) == "RESPONSE_TOO_LARGE"
    assert settled.value is None


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def _timed(candidate: object) -> tuple[SettledCall, float]:
    with Host(candidate) as host:
        started = time.monotonic()
        settled = host.call(as_registered(candidate).name)
        return settled, time.monotonic() - started


def test_a_hanging_sync_tool_is_timed_out() -> None:
    """Ours: FACTS; a hanging host tool hung the host of every other sandbox."""
    gate = threading.Event()

    @tool(limits=CapabilityLimits(timeout_ms=80))
    def hang() -> None:
        gate.wait(20)

    settled, took = _timed(hang)
    gate.set()
    assert code_of(settled) == "TIMEOUT_TOOL"
    assert settled.record.status is CallStatus.TIMEOUT
    assert settled.record.duration_ms == 80
    assert settled.exception is not None
    assert settled.exception.type == "TimeoutError"
    assert took < 5


def test_a_hanging_async_tool_is_timed_out_and_cancelled() -> None:
    """Seed: timeout_ms. Ours: the coroutine is cancelled, not left running."""
    cancelled = threading.Event()

    @tool(limits=CapabilityLimits(timeout_ms=80))
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    settled, took = _timed(hang)
    assert code_of(settled) == "TIMEOUT_TOOL"
    assert cancelled.is_set()
    assert took < 5


def test_an_async_tool_that_swallows_its_cancellation_is_timed_out_anyway() -> None:
    """Ours: the host enforces timeout_ms, whatever the tool does."""

    @tool(limits=CapabilityLimits(timeout_ms=80))
    async def stubborn() -> str:
        deadline = time.monotonic() + 0.6
        while time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.3)
            except asyncio.CancelledError:
                continue
        return "too late"

    settled, took = _timed(stubborn)
    assert code_of(settled) == "TIMEOUT_TOOL"
    assert took < 2


@pytest.mark.slow
def test_an_async_tool_that_blocks_its_loop_is_timed_out_and_leaks_nothing() -> None:
    """Ours: an `async def` that calls time.sleep must not block others or leave its loop open."""
    loops: list[asyncio.AbstractEventLoop] = []

    @tool(limits=CapabilityLimits(timeout_ms=80))
    async def blocks() -> None:
        loops.append(asyncio.get_running_loop())
        time.sleep(3)  # noqa: ASYNC251 - that is the test

    with BlockingSandbox(tools=[blocks]) as box:
        started = time.monotonic()
        result = box.run("blocks()")
        assert time.monotonic() - started < 2
        assert result.error is not None
        assert result.error.code == "TIMEOUT_TOOL"
        assert result.status == "timeout"
    deadline = time.monotonic() + 8
    while not loops[0].is_closed() and time.monotonic() < deadline:
        time.sleep(0.01)
    closed = loops[0].is_closed()
    if not closed:
        loops[0].close()  # or the warning would reach some other test
    assert closed


def test_the_late_result_of_a_timed_out_tool_is_dropped_and_its_slot_is_free() -> None:
    """Ours: an abandoned thread must not occupy its slot."""
    gate = threading.Event()

    @tool(limits=CapabilityLimits(timeout_ms=60, concurrency=1))
    def f(hang: bool) -> str:
        if hang:
            gate.wait(20)
        return "done"

    with Host(f) as host:
        assert code_of(host.call("f", True)) == "TIMEOUT_TOOL"
        assert host.call("f", False).value == "done"
        gate.set()
        assert host.call("f", False).value == "done"


# ── concurrency and rate ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asynchronous", [False, True])
def test_concurrency_is_limited_and_the_remaining_calls_wait(asynchronous: bool) -> None:
    """Seed: concurrency. Ours: a call waits for a slot and is never refused."""
    running = peak = 0
    lock = threading.Lock()

    def enter() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    def f(n: int) -> int:
        enter()
        time.sleep(0.02)
        leave()
        return n

    async def g(n: int) -> int:
        enter()
        await asyncio.sleep(0.02)
        leave()
        return n

    made = tool(name="f", limits=CapabilityLimits(concurrency=3))(g if asynchronous else f)

    with Host(made) as host, ThreadPoolExecutor(12) as pool:
        settled = list(pool.map(lambda n: host.call("f", n), range(12)))
    assert [one.value for one in settled] == list(range(12))
    assert peak == 3


def test_a_call_that_waits_for_a_person_takes_no_slot() -> None:
    """Ours: a slot is taken only after the approval."""

    @tool(approval="manual", limits=CapabilityLimits(concurrency=1))
    def ask() -> None: ...

    with Host(ask) as host:
        for call_id in range(3):
            admission = admit(host.dispatcher, "ask", [], {}, call_id=call_id)
            assert isinstance(admission, NeedsApproval)
        assert perform(host.dispatcher, admission.call).record.status is CallStatus.OK


def test_a_call_above_the_rate_is_refused_with_a_hint_until_the_rate_recovers(clock: Any) -> None:
    """Seed: rate_per_min. Ours: the refusal says how many seconds to wait."""
    calls = 0

    @tool(limits=CapabilityLimits(rate_per_min=2))
    def f() -> None:
        nonlocal calls
        calls += 1

    with Host(f, clock=clock) as host:
        host.call("f")
        clock.advance(20)
        host.call("f")
        refused = host.call("f")
        assert code_of(refused) == "RATE_LIMITED"
        assert refused.record.error is not None
        assert refused.record.error.hint == "wait 40 s"
        clock.advance(39.9)
        assert code_of(host.call("f")) == "RATE_LIMITED"
        clock.advance(0.1)
        assert host.call("f").record.status is CallStatus.OK
        assert code_of(host.call("f")) == "RATE_LIMITED"
    assert calls == 3


def test_a_rate_of_zero_refuses_every_call() -> None:
    """Ours: a rate of zero per minute permits no call."""

    @tool(limits=CapabilityLimits(rate_per_min=0))
    def f() -> None: ...

    assert code_of(settle(f)) == "RATE_LIMITED"


def test_a_call_with_refused_arguments_does_not_count_towards_the_rate(clock: Any) -> None:
    """Ours: only calls that would have been executed count."""

    @tool(limits=CapabilityLimits(rate_per_min=1, max_request_bytes=20))
    def f(x: int) -> int:
        return x

    with Host(f, clock=clock) as host:
        assert code_of(host.call("f", "no")) == "INVALID_ARGUMENT"
        assert code_of(host.call("f", 10**30)) == "REQUEST_TOO_LARGE"
        assert host.call("f", 1).value == 1


# ── exceptions and return values of tools ────────────────────────────────────────────────────────


class Odd(BaseException):
    """A BaseException that is not an Exception."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def _exit() -> None:
    sys.exit(3)


def _raise(error: BaseException) -> Any:
    raise error


RAISED: list[tuple[str, Callable[[], Any], str]] = [
    ("SystemExit", _exit, "RuntimeError"),
    ("KeyboardInterrupt", lambda: _raise(KeyboardInterrupt()), "RuntimeError"),
    ("BaseException", lambda: _raise(Odd("odd")), "RuntimeError"),
    ("GeneratorExit", lambda: _raise(GeneratorExit()), "RuntimeError"),
    ("StopIteration", lambda: _raise(StopIteration(1)), "RuntimeError"),
    ("CancelledError", lambda: _raise(asyncio.CancelledError()), "RuntimeError"),
    ("MemoryError", lambda: _raise(MemoryError()), "RuntimeError"),
    ("RecursionError", lambda: _raise(RecursionError("deep")), "RuntimeError"),
    ("ValueError", lambda: _raise(ValueError("bad")), "ValueError"),
    ("KeyError", lambda: _raise(KeyError("k")), "KeyError"),
    ("an exception without a text", lambda: _raise(Unspeakable()), "RuntimeError"),
    ("a lone surrogate in the text", lambda: _raise(ValueError("\ud800")), "ValueError"),
    ("an exception group", lambda: _raise(BaseExceptionGroup("g", [Odd()])), "RuntimeError"),
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("what", "raiser", "seen"), RAISED, ids=[row[0] for row in RAISED])
def test_any_exception_of_a_tool_becomes_a_tool_error(
    what: str, raiser: Callable[[], Any], seen: str, asynchronous: bool
) -> None:
    """Ours: SPEC §4; a tool that raises or exits becomes a typed failure, and the host keeps running."""

    def f() -> Any:
        return raiser()

    async def g() -> Any:
        return raiser()

    try:
        settled = settle(tool(name="f")(g if asynchronous else f))
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as escaped:  # these would end pytest itself
        pytest.fail(f"{type(escaped).__name__} escaped from the dispatcher")
    assert code_of(settled) == "TOOL_ERROR"
    assert settled.record.status is CallStatus.ERROR
    assert settled.exception is not None
    assert settled.exception.type == seen
    assert settled.exception.message.encode()


@pytest.mark.slow
@pytest.mark.parametrize("interruptible", [False, True])
def test_in_a_sandbox_a_tool_that_exits_or_hangs_fails_only_its_call(interruptible: bool) -> None:
    """Ours: SPEC §4; the sandbox keeps running, whether a handler is a function or a coroutine."""
    gate = threading.Event()

    def leave(kind: str) -> None:
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "odd": Odd}[kind]()

    async def leave_later(kind: str) -> None:
        leave(kind)

    def hang() -> None:
        gate.wait(20)

    async def hang_later() -> None:
        await asyncio.sleep(20)

    short = CapabilityLimits(timeout_ms=100)
    tools: list[Any] = [leave, leave_later, tool(limits=short)(hang), tool(limits=short)(hang_later)]
    with BlockingSandbox(tools=tools, interruptible=interruptible) as box:
        box.run("x = 1")
        for name in ("leave", "leave_later"):
            for kind in ("odd", "exit", "interrupt"):
                started = time.monotonic()
                result = box.run(f"try:\n    {name}('{kind}')\nexcept RuntimeError:\n    result = 'caught'")
                assert (result.status, result.result) == ("ok", "caught"), (name, kind, result.error)
                assert time.monotonic() - started < 3
        for code in ("hang()", "await hang()", "hang_later()", "await hang_later()"):
            started = time.monotonic()
            result = box.run(f"x += 1\n{code}")
            assert time.monotonic() - started < 3, code
            assert (result.status, result.error and result.error.code) == ("timeout", "TIMEOUT_TOOL")
        assert box.run("x").result == 5
        gate.set()


def _cycle() -> Any:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    return ring


def _deep() -> Any:
    value: list[Any] = []
    for _ in range(50_000):
        value = [value]
    return value


RETURNED: list[tuple[str, Callable[[], Any]]] = [
    ("NaN", lambda: float("nan")),
    ("infinity", lambda: [float("inf")]),
    ("bytes", lambda: b"x"),
    ("bytes inside", lambda: {"a": [b"x"]}),
    ("a cycle", _cycle),
    ("a lone surrogate", lambda: "\ud800"),
    ("a lone surrogate as key", lambda: {"\ud800": 1}),
    ("an object", object),
    ("a function", lambda: print),
    ("a class", lambda: int),
    ("a generator", lambda: (i for i in range(3))),
    ("very deep", _deep),
    ("a tuple as key", lambda: {(1, 2): 3}),
]


@pytest.mark.parametrize(("what", "make"), RETURNED, ids=[row[0] for row in RETURNED])
def test_a_result_that_is_not_json_is_a_serialize_error(what: str, make: Callable[[], Any]) -> None:
    """Ours: SPEC §4; a result without a JSON form becomes a typed failure."""

    @tool(limits=CapabilityLimits(timeout_ms=60_000))
    def f() -> Any:
        return make()

    settled = settle(f)
    assert code_of(settled) == "SERIALIZE_ERROR"
    assert settled.record.response_digest is None


def test_a_result_whose_conversion_raises_is_a_typed_failure() -> None:
    """Ours: a dict subclass with a hostile items() must not escape the dispatcher."""

    class Hostile(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise SystemExit(1)

    @tool
    def f() -> Any:
        return Hostile(a=1)

    assert settle(f).record.status is CallStatus.ERROR


def test_the_record_has_digests_of_the_request_and_the_response() -> None:
    """Seed: ExternalCallRecord has both digests."""

    @tool(side_effect="database")
    def f(a: int, b: str = "x") -> dict[str, int]:
        return {"z": 1, "a": a}

    record = settle(f, 1, b="y").record
    assert (record.name, record.side_effect, record.status) == ("f", "database", "ok")
    assert (
        record.request_digest == digest_json(["f", [1], {"b": "y"}]) == request_digest("f", [1], {"b": "y"})
    )
    assert record.response_digest == digest_json({"a": 1, "z": 1})
    assert record.error is None


@pytest.mark.parametrize(
    "bad", [float("nan"), b"x", "\ud800", {1}, object()], ids=lambda item: type(item).__name__
)
def test_arguments_that_are_not_json_are_refused(bad: object) -> None:
    """Ours: a native caller may pass any Python value."""

    @tool
    def f(x: Any) -> None:
        raise AssertionError("not reached")

    assert code_of(settle(f, bad)) == "INVALID_ARGUMENT"


def test_an_unknown_name_is_an_unknown_tool() -> None:
    """Ours: calling an unknown tool raises UNKNOWN_TOOL."""
    with Host() as host, pytest.raises(UnknownTool):
        host.call("nope")


# ── idempotence ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_timeout_reported_by_the_tool_itself_has_an_unknown_outcome_unless_idempotent(
    idempotent: bool,
) -> None:
    """Bug: a timeout that an isolated tool's worker reported itself was recorded as a failure."""

    @tool(idempotent=idempotent)
    def pay() -> None:
        raise ToolError("TIMEOUT_TOOL", "the bank did not answer")

    with Host(pay) as host:
        settled = host.call("pay")
    assert code_of(settled) == "TIMEOUT_TOOL"
    assert settled.exception is not None
    assert ("whether it took effect is unknown" in settled.exception.message) is not idempotent


@pytest.mark.parametrize("effect", SideEffect, ids=str)
def test_a_registered_contract_is_idempotent_only_without_side_effects(effect: SideEffect) -> None:
    """Bug: `Capability(side_effect="write")` counted as idempotent and ran again after a crash."""
    contract = Capability(name="pay", description="", side_effect=effect)
    assert contract.idempotent is (effect in (SideEffect.NONE, SideEffect.READ))


# ── approval rules ───────────────────────────────────────────────────────────────────────────────

RULES: list[tuple[str, bool]] = [
    ("True", True),
    ("kwargs['cents'] < 100", True),
    ("args[1] < 100", True),
    ("args[0].startswith('A') and session_id != ''", True),
    ("sum(i for i in range(10)) == 45", True),
    ("True  # a comment", True),
    ("False", False),
    ("None", False),
    ("1", False),
    ("'yes'", False),
    ("[True]", False),
    ("kwargs['nope']", False),
    ("args[7]", False),
    ("1/0", False),
    ("undefined", False),
    ("undefined()", False),
    ("open('/etc/passwd').read() != ''", False),
    ("__import__('os').environ == {}", False),
    ("[i for i in iter(int, 1)] == []", False),
    ("sum(1 for i in range(10**12)) > 0", False),
    ("'a' * 10**9 != ''", False),
    ("len([0] * 10**8) > 0", False),
    ("10**10**8 > 0", False),
]


@pytest.fixture(scope="module")
def rule_box() -> Iterator[BlockingSandbox]:
    def make(index: int, rule: str) -> Any:
        @tool(name=f"pay{index}", approval=auto_approval(rule))
        def pay(order: str, cents: int = 50) -> str:
            return f"paid {cents}"

        return pay

    tools = [make(index, rule) for index, (rule, _) in enumerate(RULES)]

    @tool(approval=auto_approval("kwargs['cents'] < 100"))
    def by_name(cents: int, to: str = "bank") -> int:
        return cents

    @tool(approval=auto_approval("args[0] < 100"))
    def by_position(cents: int, to: str = "bank") -> int:
        return cents

    @tool(approval=auto_approval("kwargs['cents'] is None or kwargs['cents'] < 100"))
    def by_default(cents: int = 1_000) -> int:
        return cents

    schema = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
    raw = RegisteredTool.sync(
        Capability(
            name="raw",
            description="",
            input_schema=schema,
            approval_policy=auto_approval("kwargs['cents'] < 100"),
        ),
        lambda context: context.args + list(context.kwargs.values()),
    )
    raw_by_position = RegisteredTool.sync(
        Capability(
            name="raw_by_position",
            description="",
            input_schema=schema,
            approval_policy=auto_approval("args == [] or args[0] < 100"),
        ),
        lambda context: context.args + list(context.kwargs.values()),
    )
    with BlockingSandbox(tools=[*tools, by_name, by_position, by_default, raw, raw_by_position]) as box:
        yield box


@pytest.mark.parametrize(
    ("index", "approves"), [(i, row[1]) for i, row in enumerate(RULES)], ids=[r for r, _ in RULES]
)
def test_a_rule_approves_only_if_it_is_true(
    rule_box: BlockingSandbox, sid: str, index: int, approves: bool
) -> None:
    """Ours: SPEC §4; true approves, false asks a person, an error asks a person."""
    started = time.monotonic()
    result = rule_box.run(f"pay{index}('A1')", session=sid)
    assert time.monotonic() - started < 2
    if approves:
        assert (result.status, result.result) == ("ok", "paid 50")
    else:
        assert result.status == "waiting_for_approval"


@pytest.mark.parametrize(
    ("code", "approves"),
    [
        ("by_name(99)", True),
        ("by_name(cents=99)", True),
        ("by_name(100)", False),
        ("by_name(cents=100)", False),
        ("by_name(10_000, 'me')", False),
        ("by_name(to='me', cents=10_000)", False),
        ("by_position(99)", True),
        ("by_position(cents=99)", True),
        ("by_position(to='x', cents=99)", True),
        ("by_position(100)", False),
        ("by_position(to=5 and 'x', cents=100)", False),
        ("by_default()", False),
        ("by_default(99)", True),
        ("raw(cents=99)", True),
        ("raw(cents=100)", False),
        ("raw(100)", False),
        ("raw_by_position(100)", False),
        ("raw_by_position(cents=100)", False),
    ],
)
def test_a_rule_sees_arguments_by_position_and_by_name_however_they_were_passed(
    rule_box: BlockingSandbox, sid: str, code: str, approves: bool
) -> None:
    """Bug: a call that passed cents by position must not slip past a rule over kwargs, or vice versa."""
    result = rule_box.run(code, session=sid)
    assert result.status == ("ok" if approves else "waiting_for_approval")


def test_a_manual_policy_always_asks() -> None:
    """Seed: with ApprovalPolicy::Manual every call needs an approval."""

    @tool(approval="manual")
    def f() -> None: ...

    with Host(f) as host:
        admission = admit(host.dispatcher, "f", [], {}, call_id=0)
    assert isinstance(admission, NeedsApproval)
