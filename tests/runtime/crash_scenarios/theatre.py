"""Runs scenarios in many processes, and compares the stored result with what happened outside."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

SERVER = Path(__file__).parent / "fork_server.py"
WORKERS = 2
WAYS = ("request", "resume", "recover")
REPEATABLE = ("put", "publish")
KEY, NEXT_KEY = "request-1", "request-2"

Report = dict[str, Any]


class ForkServer:
    """A server that runs a process of a scenario and returns its outcome. It ends when its input ends."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.is_idle = True

    def run(self, scenario: str, home: Path, crash_at: int | None = None, **job: Any) -> Report:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self.is_idle = False
        print(json.dumps({"scenario": scenario, "home": str(home), "crash_at": crash_at, **job}), file=stdin)
        stdin.flush()
        report = dict(json.loads(stdout.readline()))
        self.is_idle = True
        return report

    def close(self) -> None:
        self._process.communicate()


_idle: dict[Path, list[ForkServer]] = defaultdict(list)
"""Servers that other tests of this process have left: starting one costs as much as many cases."""


class Theatre:
    """Servers that run many cases concurrently, each in its own store. Sweeps kill at *points*."""

    program = SERVER

    def __init__(self, root: Path, points: range, new_url: Callable[[], str] | None = None) -> None:
        self._root = root
        self.points = points
        self._new_url = new_url
        self._here = threading.local()
        self._servers: list[ForkServer] = []
        self._threads = ThreadPoolExecutor(WORKERS)
        self._cases = count()

    def play(self, case: Callable[[ForkServer, Path], Any]) -> Any:
        home = self._root / f"case{next(self._cases)}"
        home.mkdir()
        if self._new_url is not None:
            (home / "store").write_text(self._new_url())
        if not hasattr(self._here, "server"):
            idle = _idle[self.program]
            self._here.server = idle.pop() if idle else ForkServer(self.program)
            self._servers.append(self._here.server)
        return case(self._here.server, home)

    def enumerate(self, case: Callable[[ForkServer, Path, int], object], points: Iterable[int]) -> int:
        """Run a case for each of *points* until one reports that nothing happened; return the last point."""
        numbers = iter(points)
        ends: list[int] = []

        def work() -> None:
            while not ends:
                number = next(numbers)
                if not self.play(partial(_numbered, case, number)):
                    ends.append(number)

        self._all([work] * WORKERS)
        return min(ends) - 1

    def kill_everywhere(self, scenario: str) -> int:
        """Kill at one point after the other until a process survives; return about how many there are."""
        return self.enumerate(
            lambda server, home, number: killed_at(server, home, scenario=scenario, kills=(number,)),
            self.points,
        )

    def kill_twice(self, scenario: str, points: int, kills_each: int) -> None:
        """Kill at each point, and kill the recovering process at some of its points, evenly spread."""
        self._all(
            partial(self.play, partial(killed_at, scenario=scenario, kills=(first, second)))
            for first in self.points[: self.up_to(points)]
            for second in _spread(first, points, kills_each)
        )

    def up_to(self, last: int) -> int:
        """Return how many of the points are not after *last*."""
        return len(range(self.points.start, last + 1, self.points.step))

    def _all(self, jobs: Iterable[Callable[[], Any]]) -> None:
        for future in [self._threads.submit(job) for job in jobs]:
            future.result()

    def close(self) -> None:
        self._threads.shutdown()
        for server in self._servers:
            if server.is_idle:
                _idle[self.program].append(server)
            else:
                server.close()


def _numbered(
    case: Callable[[ForkServer, Path, int], object], number: int, server: ForkServer, home: Path
) -> object:
    return case(server, home, number)


def _spread(first: int, points: int, kills: int) -> Iterator[int]:
    """Return points of the process that recovers after *first*: evenly spread, different for each *first*."""
    left = max(2 * kills, points - first + 8)
    return (1 + (step * left // kills + first) % left for step in range(kills))


def killed_at(server: ForkServer, home: Path, scenario: str, kills: Sequence[int], **job: Any) -> int:
    """Run a scenario whose processes die at these points until one survives; return the number of kills."""
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
    """The stored result, compared with the effects of tools and the requests to the model."""

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
        """Return each result under the idempotency key of its call."""
        return {f"{turn}.{one['call_id']}": one for turn, one in self.payloads if one["type"] == "tool"}

    def every_result_is_true(self, scenario: str) -> None:
        """A success has its effect, a repetition its key, and a call of unknown outcome ran at most once."""
        done = Counter(line["key"] for line in self.ledger)
        for key, result in self.results().items():
            name, error = result["name"], result.get("error")
            if name not in REPEATABLE and scenario not in AGAIN:
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
        """Every request to the model, even from a process that died, is a prefix of the stored history."""
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
AGAIN = ("ask", "retry", "ask_late", "retry_late")
"""Scenarios whose tool may be run again: a person or its author says so."""


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


def _grant(truth: Truth) -> None:
    """The grant approved the call, once, and no person was asked."""
    _finished(truth)
    assert truth.decisions == []
    (approval,) = truth.approvals
    assert (approval["capability"], approval["decided_by"]) == ("refund", "ada")
    assert approval["grant"].startswith("grt_")


def _ask(truth: Truth) -> None:
    """The call ran at most once more than a person allowed, and never without approval."""
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None
    assert len(truth.ledger) <= 1 + len(truth.approvals)


def _retry(truth: Truth) -> None:
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None


def _ask_late(truth: Truth) -> None:
    """The call ran at most once more than a person allowed; a crash while it ran is reported."""
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None or result["error"]["code"] == "INTERRUPTED"
    assert len(truth.ledger) <= 1 + len(truth.approvals)


def _retry_late(truth: Truth) -> None:
    """The call ran again for each time-out in the journal, and for no other reason."""
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None or result["error"]["code"] == "INTERRUPTED"
    late = [one for one in truth.turns[0]["summary"]["calls"] if one["status"] == "timeout"]
    assert len(truth.ledger) <= 1 + len(late)


def _completed(truth: Truth) -> None:
    _finished(truth)
    (result,) = truth.results().values()
    assert result.get("error") is None or result["error"]["code"] == "INTERRUPTED"


def _cancelled(truth: Truth) -> None:
    """An acknowledged cancellation won."""
    outcome = truth.first()
    assert outcome["type"] == "stopped" or not truth.cancellations
    assert outcome.get("reason") == "cancelled" or outcome == {"type": "finished", "text": "done"}


def _injected(truth: Truth) -> None:
    """Each acknowledged message is in the history once."""
    times = sum(1 for _, one in truth.payloads if one.get("content") == "one more thing")
    assert times == 1 or (times == 0 and not truth.injected)
    _finished(truth, "that too" if times else "done")


def _stopped(truth: Truth) -> None:
    assert truth.first()["type"] == "stopped"
    assert truth.first()["reason"] in ("turn_budget", "no_progress")


def _switched(truth: Truth) -> None:
    """The task of the new frame was executed once."""
    if truth.first()["type"] == "frame_switched":
        assert [one.get("content") for _, one in truth.payloads].count("the task") == 1
        assert len(truth.turns) == 3


ENDS: dict[str, Callable[[Truth], None]] = {
    "sequence": _sequence,
    "parallel": _parallel,
    "grant": _grant,
    "ask": _ask,
    "retry": _retry,
    "ask_late": _ask_late,
    "retry_late": _retry_late,
    "timer": _completed,
    "completion": _completed,
    "early_completion": _completed,
    "cancel": _cancelled,
    "inject": _injected,
    "budget": _stopped,
    "no_progress": _stopped,
    "frame": _switched,
}
