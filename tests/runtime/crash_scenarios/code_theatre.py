"""Runs turns that act in code in many processes, and compares the stored result with the recorded actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from crash_scenarios.theatre import KEY, NEXT_KEY, WAYS, ForkServer, Report, Theatre, Truth, _lines

from standfast.model.canonical import digest_bytes, encode_sorted

SERVER = Path(__file__).parent / "code_server.py"
REPEATABLE = ("price", "stock", "llm")
AGAIN = {"ask": ("charge",), "ask_late": ("charge",), "retry": ("charge",)}
"""What is not idempotent and may be run again all the same, in the scenarios about that."""


class CodeTheatre(Theatre):
    program = SERVER

    def kill_everywhere(self, scenario: str) -> int:
        return self.enumerate(
            lambda server, home, number: acted(server, home, scenario=scenario, kills=(number,)),
            self.points,
        )

    def kill_again(self, scenario: str, points: int) -> None:
        """Kill at each point, and kill the recovering process at another point each time."""
        sampled = self.points[: self.up_to(points)]
        pairs = [(first, 1 + (first * 7) % max(8, points - first + 8)) for first in sampled]
        self._all(partial(self.play, partial(acted, scenario=scenario, kills=pair)) for pair in pairs)


def acted(server: ForkServer, home: Path, scenario: str, kills: Sequence[int], **job: Any) -> int:
    """Run a scenario whose processes die at these points until one survives; return the number of kills."""
    where = f"{scenario} killed at {kills}"
    for number, crash_at in enumerate([*kills, None]):
        how = "request" if number == 0 else WAYS[(sum(kills) + number) % len(WAYS)]
        report = server.run(scenario, home, crash_at, how=how, **job)
        if not report.get("killed"):
            break
    assert report.get("status") == "done", (where, how, report)
    try:
        CodeTruth(home, report).check(scenario)
    except AssertionError as error:
        raise AssertionError(f"{where}, then {how}: {error}\n{(home / 'acts').read_text()}") from error
    return number


class CodeTruth(Truth):
    """The stored result and the final variables, compared with the recorded actions."""

    def __init__(self, home: Path, report: Report) -> None:
        super().__init__(home, report)
        self.acts = _lines(home / "acts")
        self.written: list[Any] = report["written"]
        self.usage: list[Any] = report["usage"]
        self.read: list[Any] = report["read"]
        self.turn: str = self.turns[0]["turn_id"]
        self.cells = [one for turn, one in self.payloads if turn == self.turn and one["type"] == "tool"]
        self.made: dict[int, Any] = {
            call["call_id"]: call for one in self.cells for call in (one.get("value") or {}).get("calls", ())
        }

    def check(self, scenario: str) -> None:
        self.every_turn_ended_once()
        self.every_cell_ran_to_its_end()
        self.nothing_was_done_again(AGAIN.get(scenario, ()))
        self.check_stored(scenario)

    def check_stored(self, scenario: str) -> None:
        """Check the same, but allow effects of a process that did not know it had lost its turn."""
        self.every_turn_ended_once()
        self.every_cell_ran_to_its_end()
        self.every_call_has_one_result()
        self.every_call_of_a_cell_is_true(AGAIN.get(scenario, ()))
        self.every_call_of_a_cell_is_on_record()
        self.every_effect_was_asked_for()
        self.the_model_was_told_what_is_stored()
        self.every_approval_was_decided_once()
        self.every_reply_was_counted_once(2 if scenario == "asks" else 0)
        asked, variables = EXPECTED[scenario](self, [self.worth(call_id) for call_id in sorted(self.made)])
        assert [one["name"] for _, one in sorted(self.made.items())] == asked
        self.the_variables_are(variables)

    def every_turn_ended_once(self) -> None:
        assert [turn["state"] for turn in self.turns] == ["ended"] * 2
        assert [turn["idempotency_key"] for turn in self.turns] == [KEY, NEXT_KEY]
        segments = Counter(turn_id for turn_id, payload in self.payloads if payload["type"] == "user")
        assert segments == {turn["turn_id"]: 1 for turn in self.turns}
        assert self.inputs == []

    def every_cell_ran_to_its_end(self) -> None:
        for one in self.cells:
            assert one.get("error") is None, f"a cell failed: {one['error']['message']}"
        assert self.first()["type"] == "finished", self.first()

    def the_variables_are(self, expected: Any) -> None:
        """Check the variables read by the next turn, and by a fork that has only the committed state."""
        for one in self.read:
            assert one["error"] is None, f"a cell failed: {one['error']['message']}"
            assert one["variables"] == expected, f"the variables are {one['variables']}, not {expected}"

    # Calls of cells

    def worth(self, call_id: int) -> Any:
        """Return the result that code got from a call: its effect, or that its outcome is unknown."""
        call = self.made[call_id]
        if call.get("error") is not None:
            return f"{call['error']['code']}: {call['error']['message']}"
        if call["name"] == "llm":
            return "seven"
        return (
            f"delivered {call_id}" if call["name"] == "outside" else f"{call['name']} {self.turn}.{call_id}"
        )

    def processes(self) -> int:
        return sum("journal" in line for line in self.acts)

    def given(self, call_id: int) -> list[Any]:
        """Return the arguments of each execution of a call."""
        return [line["given"] for line in self.ledger if line["key"] == f"{self.turn}.{call_id}"]

    def every_call_of_a_cell_is_true(self, again: Sequence[str]) -> None:
        """A success has its effect, a repetition its key, and a call of unknown outcome ran at most once."""
        for call_id, call in self.made.items():
            name, done = call["name"], self.given(call_id)
            assert all(given == done[0] for given in done), f"{name} was done with {done}"
            if name not in REPEATABLE and name not in again:
                assert len(done) <= 1, f"{name} was done {len(done)} times"
            if call.get("error") is None:
                assert done or name == "llm", f"{name} is said to be done and was not"
            else:
                assert call["error"]["code"] == "INTERRUPTED", call["error"]
                assert name not in REPEATABLE
                assert self.was_left_open(call_id), f"{name} is said to be interrupted and was not"

    def was_left_open(self, call_id: int) -> bool:
        """Return whether some process found the call started and without an outcome."""
        return any(
            any(turn == self.turn and name.startswith(f"tool.{call_id}.") for turn, name, _ in found)
            and [self.turn, f"tool.{call_id}", "input"] not in found
            for found in (line["journal"] for line in self.acts if "journal" in line)
        )

    def every_call_of_a_cell_is_on_record(self) -> None:
        records = self.turns[0]["summary"].get("calls", [])
        last = (one for one in records if one["status"] != "timeout")  # after which the call was made again
        kept = Counter((one["name"], one["status"], one["response_digest"]) for one in last)
        assert kept == Counter(
            (
                call["name"],
                call.get("status", "ok"),
                None if call.get("error") else digest_bytes(encode_sorted(self.worth(call_id))),
            )
            for call_id, call in self.made.items()
        )

    def every_effect_was_asked_for(self) -> None:
        for line in self.ledger:
            turn, _, call_id = line["key"].rpartition(".")
            assert turn == self.turn
            assert self.made[int(call_id)]["name"] == line["name"]

    # Actions, compared with what was journaled before

    def nothing_was_done_again(self, again: Sequence[str]) -> None:
        """No action has its outcome in the journal already; no suspended cell starts from the beginning."""
        known = _Known()
        for line in self.acts:
            if "journal" in line:
                known.found(line)
            else:
                known.check(line, again)

    def every_reply_was_counted_once(self, asked_by_code: int) -> None:
        replies = [
            one["usage"] for _, one in self.payloads if one["type"] == "assistant" and one.get("model")
        ]
        turns, others = [
            [one["usage"] for one in self.usage if (one["source"] == "turn") == own] for own in (True, False)
        ]
        for unit in ("input", "output", "calls"):
            used = sum(one.get(unit, 0) for one in turns)
            assert used == sum(one.get(unit, 0) for one in replies), (unit, used)
        assert sum(one["calls"] for one in others) == asked_by_code, others
        assert self.head["model_calls"] == len(replies) + asked_by_code

    def the_model_was_told_what_is_stored(self) -> None:
        """Every request to the model, even from a process that died, is a prefix of the stored history."""
        for told in self.told:
            assert told["messages"] == self.written[: len(told["messages"])]


class _Known:
    """The outcomes that successive processes found in the journal, and their actions since."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._outcomes: set[tuple[str, str]] = set()
        self._intents: set[tuple[str, str]] = set()
        self._suspended: set[tuple[str, str]] = set()
        self._done: set[tuple[str, ...]] = set()
        self._last_cell: dict[str, tuple[str, str]] = {}

    def found(self, line: Any) -> None:
        """Record that a process starts."""
        self._ended |= {turn for turn, state in line["states"] if state == "ended"}
        self._outcomes |= {(turn, name) for turn, name, kind in line["journal"] if kind == "input"}
        self._intents |= {(turn, name) for turn, name, kind in line["journal"] if kind == "intent"}
        waiting = {turn for turn, state in line["states"] if state == "waiting"}
        waiting &= {turn for turn, name, kind in line["journal"] if (name, kind) == ("execution", "state")}
        self._suspended |= {cell for turn, cell in self._last_cell.items() if turn in waiting}
        self._done = set()

    def check(self, line: Any, again: Sequence[str]) -> None:
        act, turn, key = line["act"], line["turn"], line["key"]
        where = f"{act} {line.get('name', '')} {turn}.{key}"
        assert turn not in self._ended, f"{where}, and the turn had ended"
        assert (turn, key) not in self._outcomes, f"{where}, and it had its outcome"
        if act == "call":
            self._check_call(line, where, again)
        elif act in ("begin", "go on"):
            self._check_cell(act, (turn, key), where)
        else:
            self._once((act, turn, key), where)

    def _check_call(self, line: Any, where: str, again: Sequence[str]) -> None:
        attempt = f"{line['key']}.{line['attempt']}"
        if line["name"] not in (*REPEATABLE, *again):
            assert (line["turn"], attempt) not in self._intents, f"{where}, and it was begun before"
        self._once(("call", line["turn"], attempt), where)

    def _check_cell(self, act: str, cell: tuple[str, str], where: str) -> None:
        self._last_cell[cell[0]] = cell
        if act == "begin":
            assert cell not in self._suspended, f"{where} from its beginning, and it was suspended"
            self._once((act, *cell), where)

    def _once(self, done: tuple[str, ...], where: str) -> None:
        assert done not in self._done, f"{where} twice in one process"
        self._done.add(done)


# Values of the variables, given the results of the calls


Expected = tuple[list[str], Any]
"""The calls, and the variables."""


def _five(truth: CodeTruth, worth: list[Any]) -> Expected:
    a, x, charged, booked, ok = worth
    assert [one["capability"] for one in truth.approvals] == ["refund"]
    for call_id, given in zip(range(2, 7), (["A"], ["x"], ["B", 5], ["z"], ["A1", 7]), strict=True):
        assert all(one == given for one in truth.given(call_id))
    assert truth.cells[0]["value"]["stdout"] == "2\n5\n6\n"
    variables = {"a": a, "three": [x, charged, booked], "ok": ok, "seen": ["begun", *worth]}
    return ["price", "stock", "charge", "book", "refund"], variables


def _steps(truth: CodeTruth, worth: list[Any]) -> Expected:
    a, b, c = worth
    assert [one["value"]["index"] for one in truth.cells] == [0, 1, 2]
    variables = {
        "log": [a, b, "more", c, "again"],
        "a": a,
        "both": [b, b],
        "c": c,
        "big": [f"2998 {a}", f"2999 {a}"],
        "printed": 50_001,
    }
    return ["price", "charge", "stock"], variables


def _chance(truth: CodeTruth, worth: list[Any]) -> Expected:
    """Calls were made with the numbers that were drawn: a process that drew again drew the same numbers."""
    drawn = truth.read[0]["variables"]["drawn"]
    asked = [drawn[0], drawn[2], drawn[4], drawn[5], drawn[6]]
    assert len(drawn) == len(set(drawn)) == 7
    for call_id, text in zip(sorted(truth.made), asked, strict=True):
        assert all(given[0] == text for given in truth.given(call_id)), (text, truth.given(call_id))
    return ["price", "charge", "stock", "refund", "price"], {"drawn": drawn, "got": worth}


def _order(truth: CodeTruth, worth: list[Any]) -> Expected:
    """Code received results in the order in which they arrived."""
    order = truth.read[0]["variables"]["order"]
    assert sorted(order) == ["x", "y", "z"]
    assert order == ["z", "y", "x"] or truth.processes() > 1
    assert all(given == [order[0]] for given in truth.given(5)), (order, truth.given(5))
    assert all(given == [order[-1], 3] for given in truth.given(6)), (order, truth.given(6))
    variables = {"order": order, "three": worth[:3], "first": worth[3], "last": worth[4]}
    return ["stock", "stock", "stock", "price", "charge"], variables


def _done(truth: CodeTruth, worth: list[Any]) -> Expected:
    """The call that may be run again has its result; a person was asked each time before it was."""
    a, b, c = worth
    assert truth.made[3].get("error") is None
    assert all(given == [b] for given in truth.given(4))
    return ["price", "charge", "stock"], {"a": a, "b": b, "c": c}


def _ask(truth: CodeTruth, worth: list[Any]) -> Expected:
    assert len(truth.given(3)) <= 1 + len(truth.approvals)
    return _done(truth, worth)


def _waits(truth: CodeTruth, worth: list[Any]) -> Expected:
    """Each wait ended once, whichever event came first, and code resumed in that order."""
    heard = truth.read[0]["variables"]["heard"]
    assert sorted(heard) == ["later", "outside", "refund"]
    assert all(given == [heard[1]] for given in truth.given(6))
    later, x, outside, refund, b = worth
    variables = {"heard": heard, "a": later, "three": [outside, refund, x], "b": b}
    return ["later", "stock", "outside", "refund", "price"], variables


def _asks(truth: CodeTruth, worth: list[Any]) -> Expected:
    n, b, m = worth
    return ["llm", "charge", "llm"], {"n": n, "b": b, "m": m}


def _computes(truth: CodeTruth, worth: list[Any]) -> Expected:
    a, b = worth
    total = sum(number % 7 for number in range(3_000_000))
    assert all(given == [a, total] for given in truth.given(3))
    return ["price", "charge"], {"a": a, "b": b, "total": total}


EXPECTED: dict[str, Callable[[CodeTruth, list[Any]], Expected]] = {
    "five": _five,
    "steps": _steps,
    "chance": _chance,
    "order": _order,
    "ask": _ask,
    "ask_late": _ask,
    "retry": _done,
    "waits": _waits,
    "asks": _asks,
    "computes": _computes,
    "mode": _five,
}
