"""A turn is killed at every point, and while it is recovered, and again; nothing is lost and nothing doubled.

Nobody tells these tests the points. They run a scenario that dies at its first point, then at its second, and
so on until one lives. What the tools did stands in a ledger outside, and what the model was told in another;
at the end both are compared with what is stored.
"""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.ports.session_store import SessionStore
from holdfast.testing import crash_points

SERVER = Path(__file__).parent / "crash_scenarios" / "fork_server.py"
WORKERS = 2
WAYS = ("request", "resume", "recover")
REPEATABLE = ("put", "publish")
KEY, NEXT_KEY = "request-1", "request-2"

Report = dict[str, Any]


class ForkServer:
    """Runs a process of a scenario and tells what came of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, scenario: str, home: Path, crash_at: int | None = None, **job: Any) -> Report:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps({"scenario": scenario, "home": str(home), "crash_at": crash_at, **job}), file=stdin)
        stdin.flush()
        return dict(json.loads(stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


class Theatre:
    """A few servers that play many cases at once, each in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._here = threading.local()
        self._servers: list[ForkServer] = []
        self._threads = ThreadPoolExecutor(WORKERS)
        self._cases = count()

    def play(self, case: Callable[[ForkServer, Path], Any]) -> Any:
        home = self._root / f"case{next(self._cases)}"
        home.mkdir()
        if not hasattr(self._here, "server"):
            self._here.server = ForkServer()
            self._servers.append(self._here.server)
        return case(self._here.server, home)

    def enumerate(self, scenario: str) -> int:
        """Kill at the first point, the second, and so on until a process lives; returns their number."""
        numbers = count(1)
        ends: list[int] = []

        def work() -> None:
            while not ends:
                number = next(numbers)
                if not self.play(partial(killed_at, scenario=scenario, kills=(number,))):
                    ends.append(number)

        self._all([work] * WORKERS)
        return min(ends) - 1

    def enumerate_twice(self, scenario: str, points: int, kills_each: int) -> None:
        """Kill at each point, and the process that recovers at some of its own, spread over all it has."""
        self._all(
            partial(self.play, partial(killed_at, scenario=scenario, kills=(first, second)))
            for first in range(1, points + 1)
            for second in _spread(first, points, kills_each)
        )

    def _all(self, jobs: Iterable[Callable[[], Any]]) -> None:
        for future in [self._threads.submit(job) for job in jobs]:
            future.result()

    def close(self) -> None:
        self._threads.shutdown()
        for server in self._servers:
            server.close()


@pytest.fixture
def theatre(tmp_path: Path) -> Iterator[Theatre]:
    made = Theatre(tmp_path)
    yield made
    made.close()


def _spread(first: int, points: int, kills: int) -> Iterator[int]:
    """Points of a process that goes on after the *first*: evenly, and others for each first point."""
    left = max(2 * kills, points - first + 8)
    return (1 + (step * left // kills + first) % left for step in range(kills))


def killed_at(server: ForkServer, home: Path, scenario: str, kills: Sequence[int], **job: Any) -> int:
    """Play a scenario whose processes die at these points until one lives; returns how many were killed."""
    where = f"{scenario} killed at {kills}"
    for number, crash_at in enumerate([*kills, None]):
        how = "request" if number == 0 else WAYS[(sum(kills) + number) % len(WAYS)]
        report = server.run(scenario, home, crash_at, how=how, **job)
        if not report.get("killed"):
            break
    assert report.get("status") == "done", (where, how, report)
    try:
        Truth(home, report).check(scenario)
    except AssertionError as error:
        raise AssertionError(f"{where}, then {how}: {error}\n{(home / 'ledger').read_text()}") from error
    return number


class Truth:
    """What is stored at the end, beside what tools did and the model was told."""

    def __init__(self, home: Path, report: Report) -> None:
        self.ledger = _lines(home / "ledger")
        self.told = _lines(home / "told")
        self.decisions = _lines(home / "decisions")
        self.injected = _lines(home / "injected")
        self.cancellations = _lines(home / "cancellations")
        self.turns: list[Any] = report["turns"]
        self.approvals: list[Any] = report["approvals"]
        self.inputs: list[Any] = report["inputs"]
        self.head: Any = report["head"]
        self.payloads = [(node["caused_by"], node["payload"]) for node in report["nodes"]]
        self.messages: list[Any] = report["messages"]

    def check(self, scenario: str) -> None:
        self.every_turn_ended_once()
        self.every_call_has_one_result()
        self.every_result_is_true(scenario)
        self.every_effect_was_asked_for()
        self.the_model_was_told_what_is_stored()
        self.every_approval_was_decided_once()
        ENDS[scenario](self)

    def first(self) -> Any:
        return self.turns[0]["summary"]["outcome"]

    def every_turn_ended_once(self) -> None:
        assert [turn["state"] for turn in self.turns] == ["ended"] * len(self.turns)
        keys = Counter(turn["idempotency_key"] for turn in self.turns)
        assert (keys[KEY], keys[NEXT_KEY]) == (1, 1)
        segments = Counter(turn_id for turn_id, payload in self.payloads if payload["type"] == "user")
        assert set(segments) == {turn["turn_id"] for turn in self.turns}
        assert self.inputs == []
        assert self.turns[-1]["summary"]["outcome"] == {"type": "finished", "text": "hello again"}

    def every_call_has_one_result(self) -> None:
        asked = [
            (turn_id, call["call_id"])
            for turn_id, payload in self.payloads
            for call in payload.get("tool_calls", ())
        ]
        given = [(turn_id, one["call_id"]) for turn_id, one in self.payloads if one["type"] == "tool"]
        assert asked == given

    def results(self) -> dict[str, Any]:
        """Each result under the idempotency key of its call."""
        return {f"{turn}.{one['call_id']}": one for turn, one in self.payloads if one["type"] == "tool"}

    def every_result_is_true(self, scenario: str) -> None:
        """A success has its effect, a repetition its key, and what is not known happened once at most."""
        done = Counter(line["key"] for line in self.ledger)
        for key, result in self.results().items():
            name, error = result["name"], result.get("error")
            if name not in REPEATABLE and scenario not in ("ask", "retry"):
                assert done[key] <= 1, f"{name} was done {done[key]} times"
            if error is None:
                assert done[key] >= 1, f"{name} is said to be done and was not"
                assert result["value"] in (f"{name} {key}", f"delivered {result['call_id']}", CONTINUED)
            elif error["code"] in ("INVALID_ARGUMENT", "PERMISSION_DENIED"):
                assert done[key] == 0
            else:
                assert error["code"] in ("INTERRUPTED", "CANCELLED"), error
                assert name not in REPEATABLE

    def every_effect_was_asked_for(self) -> None:
        names = {key: result["name"] for key, result in self.results().items()}
        for line in self.ledger:
            assert names.get(line["key"]) == line["name"]

    def the_model_was_told_what_is_stored(self) -> None:
        """Whatever any process told the model, also one that died, is the beginning of what is stored."""
        kept = [json.dumps(one) for _, one in self.payloads if one["type"] in ("user", "assistant", "tool")]
        frame = [json.dumps(message) for message in self.messages]
        for told in self.told:
            said = [json.dumps(message) for message in told["messages"]]
            assert said in (kept[: len(said)], frame[: len(said)])

    def every_approval_was_decided_once(self) -> None:
        decided = Counter(line["id"] for line in self.decisions)
        assert all(times == 1 for times in decided.values())
        states = {one["approval_id"]: one["state"] for one in self.approvals}
        assert set(decided) <= set(states)
        assert all(state == "approved" for state in states.values())


CONTINUED = "continued in a new frame"


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _finished(truth: Truth, text: str = "done") -> None:
    assert truth.first() == {"type": "finished", "text": text}


def _sequence(truth: Truth) -> None:
    _finished(truth)
    assert len(truth.turns) == 2
    assert [one["capability"] for one in truth.approvals] == ["refund"]
    assert truth.head["model_calls"] == 5


def _parallel(truth: Truth) -> None:
    _finished(truth)
    assert sorted(one["capability"] for one in truth.approvals) == ["publish", "refund"]


def _ask(truth: Truth) -> None:
    """It was run once more than a person allowed, at most; and never without being asked for."""
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None
    assert len(truth.ledger) <= 1 + len(truth.approvals)


def _retry(truth: Truth) -> None:
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None


def _completed(truth: Truth) -> None:
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None or result["error"]["code"] == "INTERRUPTED"


def _cancelled(truth: Truth) -> None:
    """A cancellation that was acknowledged won."""
    outcome = truth.first()
    assert outcome["type"] == "stopped" or not truth.cancellations
    assert outcome.get("reason") == "cancelled" or outcome == {"type": "finished", "text": "done"}


def _injected(truth: Truth) -> None:
    """What was acknowledged is in the history, once."""
    times = sum(1 for _, one in truth.payloads if one.get("content") == "one more thing")
    assert times == 1 or (times == 0 and not truth.injected)
    _finished(truth, "that too" if times else "done")


def _stopped(truth: Truth) -> None:
    assert truth.first()["type"] == "stopped"
    assert truth.first()["reason"] in ("turn_budget", "no_progress")


def _switched(truth: Truth) -> None:
    """The task of the new frame is done, once."""
    if truth.first()["type"] == "frame_switched":
        assert [one.get("content") for _, one in truth.payloads].count("the task") == 1
        assert len(truth.turns) == 3


ENDS: dict[str, Callable[[Truth], None]] = {
    "sequence": _sequence,
    "parallel": _parallel,
    "ask": _ask,
    "retry": _retry,
    "timer": _completed,
    "completion": _completed,
    "early_completion": _completed,
    "cancel": _cancelled,
    "inject": _injected,
    "budget": _stopped,
    "no_progress": _stopped,
    "frame": _switched,
}


def killed_while_deciding(server: ForkServer, home: Path, kill: int) -> bool:
    """A turn waits, a process without any agent decides and dies at that point, another one goes on."""
    assert server.run("sequence", home, how="ask")["status"] == "waiting"
    killed = server.run("sequence", home, kill, how="decide").get("killed", False)
    killed_at(server, home, "sequence", ())
    return bool(killed)


# The tests


def test_a_turn_survives_kills_here_and_there(theatre: Theatre) -> None:
    """Ours: the quick look at what the slow tests below do at every point."""
    for number in (3, 10, 13, 22, 23, 38, 46, 54):
        assert theatre.play(partial(killed_at, scenario="sequence", kills=(number,))) == 1


@pytest.mark.slow
def test_a_turn_survives_a_kill_at_every_point_and_another_while_it_is_recovered(theatre: Theatre) -> None:
    """Ours: the issue's proof; a repeatable call, one that is not, an approval, the commit; killed twice."""
    points = theatre.enumerate("sequence")
    assert points > 50
    theatre.enumerate_twice("sequence", points, 3)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted(ENDS.keys() - {"sequence"}))
def test_other_turns_survive_two_kills_at_every_point(theatre: Theatre, scenario: str) -> None:
    """Ours: SPEC §7; parallel calls, every kind of wait, cancellation, injected messages, budgets, frames."""
    points = theatre.enumerate(scenario)
    assert points > 15
    theatre.enumerate_twice(scenario, points, 1)


@pytest.mark.slow
def test_a_decision_made_by_another_process_survives_a_kill_at_every_point_of_that_process(
    theatre: Theatre,
) -> None:
    """Ours: a person decides somewhere else; the decision is there or it is not, and is used once."""
    numbers = count(1)
    while theatre.play(partial(killed_while_deciding, kill=next(numbers))):
        continue
    assert next(numbers) > 4


@pytest.mark.slow
def test_a_store_that_loses_intents_is_found_out(theatre: Theatre) -> None:
    """Ours: a proof that cannot fail proves nothing."""
    broken = partial(killed_at, scenario="sequence", forgetful=True)
    found = Counter[bool]()
    for number in range(15, 30):
        try:
            theatre.play(partial(broken, kills=(number,)))
        except AssertionError as error:
            found["charge was done 2 times" in str(error)] += 1
    assert found[True] > 0
    assert found[False] == 0


def test_whatever_a_store_can_write_has_points() -> None:
    """Ours: a method that is added to the port is a write until somebody says that it only reads."""
    methods = {name for name, member in vars(SessionStore).items() if inspect.iscoroutinefunction(member)}
    assert set(crash_points._READS) < methods
    writes = {"open_session", "describe", "delete_session", "append", "fork", "rewind", "begin", "take_over"}
    writes |= {"save", "park", "commit", "renew", "cancel", "put_input", "withdraw_input", "ended_waits"}
    writes |= {"complete", "decide", "prune"}
    assert writes <= methods - set(crash_points._READS)


def test_a_process_dies_at_the_point_that_the_environment_names(child: Callable[..., Any]) -> None:
    """Ours: the number is all that a test has to know."""
    script = """
    from holdfast.testing.crash_points import CrashPoints
    points = CrashPoints.from_environment()
    for name in "abc":
        print(name, flush=True)
        points.point(name)
    """
    dying = child(script, env={"HOLDFAST_CRASH_AT": "2"}).process
    assert (dying.communicate()[0].split(), dying.returncode) == (["a", "b"], -signal.SIGKILL)
    assert child(script).output().split() == ["a", "b", "c"]
