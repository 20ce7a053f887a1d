"""Runs turns with plugins in many processes, and compares what is stored with what hooks and tools did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from crash_scenarios.theatre import WAYS, ForkServer, Report, Theatre, Truth, _lines

SERVER = Path(__file__).parent / "plugin_server.py"


class PluginTheatre(Theatre):
    program = SERVER

    def kill_everywhere(self, scenario: str) -> int:
        return self.enumerate(
            lambda server, home, number: watched(server, home, scenario=scenario, kills=(number,)),
            self.points,
        )

    def kill_again(self, scenario: str, points: int) -> None:
        """Kill at each point, and kill the recovering process at another point each time."""
        sampled = self.points[: self.up_to(points)]
        pairs = [(first, 1 + (first * 7) % max(8, points - first + 8)) for first in sampled]
        self._all(partial(self.play, partial(watched, scenario=scenario, kills=pair)) for pair in pairs)


def watched(server: ForkServer, home: Path, scenario: str, kills: Sequence[int], **job: Any) -> int:
    """Run a scenario whose processes die at these points until one survives; return the number of kills."""
    where = f"{scenario} killed at {kills}"
    for number, crash_at in enumerate([*kills, None]):
        how = "request" if number == 0 else WAYS[(sum(kills) + number) % len(WAYS)]
        report = server.run(scenario, home, crash_at, how=how, **job)
        if not report.get("killed"):
            break
    assert report.get("status") == "done", (where, how, report)
    try:
        PluginTruth(home, report).check(scenario)
    except AssertionError as error:
        raise AssertionError(f"{where}, then {how}: {error}\n{(home / 'hooks').read_text()}") from error
    return number


class PluginTruth(Truth):
    """The stored result, compared with what hooks and tools did."""

    def __init__(self, home: Path, report: Report) -> None:
        super().__init__(home, report)
        self.hooks = _lines(home / "hooks")
        self.prompts = _lines(home / "prompts")
        self.counted: dict[str, int] = report["counted"]
        self.children: list[list[str]] = report["children"]

    def check(self, scenario: str) -> None:
        self.every_turn_ended_once()
        self.every_call_has_one_result()
        self.every_result_is_true(scenario)
        self.every_effect_was_asked_for()
        self.the_model_was_told_what_is_stored()
        self.every_approval_was_decided_once()
        self.no_hook_ran_after_its_outcome_was_journaled()
        self.every_hook_is_remembered_once()
        self.everything_said_by_the_plugin_was_said_once()
        self.every_session_was_made_once()
        assert self.first() == {"type": "finished", "text": "done"}
        assert [one["capability"] for one in self.approvals] == ["refund"]
        assert {line["prompt"] for line in self.prompts} == {"you are watched"}

    def no_hook_ran_after_its_outcome_was_journaled(self) -> None:
        ended: set[str] = set()
        journaled: set[tuple[str, str]] = set()
        ran: set[tuple[str, str]] = set()
        for line in self.hooks:
            if "journaled" in line:
                ended |= set(line["ended"])
                journaled |= {(turn, key) for turn, key in line["journaled"]}
                ran = set()
                continue
            hook = (line["turn"], line["key"])
            assert line["turn"] not in ended, f"{hook} ran, and its turn had ended"
            assert hook not in journaled, f"{hook} ran again"
            assert hook not in ran, f"{hook} ran twice in one process"
            ran.add(hook)

    def every_hook_is_remembered_once(self) -> None:
        """Counts of runs that were not journaled are discarded, and no others."""
        ran = {f"{line['turn']} {line['key']}" for line in self.hooks if line.get("session") == "s"}
        counted = {name: times for name, times in self.counted.items() if name != "bumps"}
        wrong = set(counted.items()) ^ {(name, 1) for name in ran}
        assert not wrong, sorted(wrong)
        assert self.counted.get("bumps", 0) == sum(
            1 for one in self.results().values() if one["name"] == "bump" and one.get("error") is None
        )

    def everything_said_by_the_plugin_was_said_once(self) -> None:
        said = Counter(one["content"] for _, one in self.payloads if one["type"] == "user")
        assert said == Counter(["go", "mind the gap", "charged it", "are you sure", "and then", "again"]), (
            said
        )
        events = [one["body"] for _, one in self.payloads if one["type"] == "plugin"]
        assert events == [one["call_id"] for _, one in self.payloads if one.get("name") == "put"]

    def every_session_was_made_once(self) -> None:
        assert sorted(self.children) == [[], ["child task", "child done"]]
