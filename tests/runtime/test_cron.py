"""Cron expressions: their syntax, and the next time that matches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import InvalidArgument
from standfast.runtime.cron import parse_cron, times_after

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
_NAMES = {
    "JAN": 1, "FEB": 2, "MAR": 3, "APR": 4, "MAY": 5, "JUN": 6,
    "SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6,
}  # fmt: skip


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """Return the instant at which clocks in a zone show this time."""
    time = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(time.timestamp() * 1000)


def shown(at_ms: int | None, zone: str = "UTC") -> str:
    """Return the time that clocks in a zone show at this instant."""
    assert at_ms is not None
    return datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")


def next_after(expression: str, at_ms: int, timezone: str = "UTC") -> int | None:
    return next(times_after(expression, at_ms, timezone), None)


def upcoming(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    return [shown(at, zone) for at in islice(times_after(expression, ms(after, zone), zone), count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", "2024-05-15 10:31"),
        ("0 * * * *", "2024-05-15 11:00"),
        ("*/15 * * * *", "2024-05-15 10:45"),
        ("5,35 9-17/4 * * *", "2024-05-15 13:05"),
        ("30 7 * * MON-FRI", "2024-05-16 07:30"),
        ("30 7 * * fri-sun", "2024-05-17 07:30"),
        ("0 0 * * 7", "2024-05-19 00:00"),
        ("0 0 * * 5-0", "2024-05-17 00:00"),
        ("0 0 1 JAN *", "2025-01-01 00:00"),
        ("0 0 31 * *", "2024-05-31 00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 12 1 1-6/5 *", "2024-06-01 12:00"),
        ("@hourly", "2024-05-15 11:00"),
        ("@daily", "2024-05-16 00:00"),
        ("@midnight", "2024-05-16 00:00"),
        ("@weekly", "2024-05-19 00:00"),
        ("@monthly", "2024-06-01 00:00"),
        ("@Yearly", "2025-01-01 00:00"),
        ("@annually", "2025-01-01 00:00"),
        ("  0   0  *  *  *  ", "2024-05-16 00:00"),
    ],
)
def test_the_next_time_is_the_first_that_matches(expression: str, expected: str) -> None:
    """Ours: cron expressions have ranges, lists, steps, names and shorthands."""
    assert shown(next_after(expression, ms("2024-05-15T10:30"))) == expected


def test_the_next_time_is_later_than_now_even_if_now_matches() -> None:
    """Ours: a timer that has just fired does not fire again."""
    at = ms("2024-05-15T10:30")
    assert next_after("30 10 * * *", at) == at + 86_400_000
    assert next_after("30 10 * * *", at - 1) == at


def test_if_both_days_are_restricted_either_one_suffices() -> None:
    """Ours: this is cron's rule for day of month and day of week."""
    assert upcoming("0 0 13 * FRI", "2024-09-01T00:00", 4) == [
        "2024-09-06 00:00", "2024-09-13 00:00", "2024-09-20 00:00", "2024-09-27 00:00",
    ]  # fmt: skip
    assert upcoming("0 0 1 * MON", "2024-09-30T12:00", 2) == ["2024-10-01 00:00", "2024-10-07 00:00"]


def test_a_day_field_that_begins_with_a_star_must_match_together_with_the_other() -> None:
    """Ours: as in cron, `*/2` is a star with a step."""
    assert upcoming("0 0 */2 * MON", "2024-09-01T00:00", 2) == ["2024-09-09 00:00", "2024-09-23 00:00"]


def test_an_impossible_date_is_refused_at_once() -> None:
    """Ours: an impossible date such as February 30 raises an error instead of searching forever."""
    for expression in ("0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 */2"):
        with pytest.raises(InvalidArgument, match="no month has") as caught:
            next_after(expression, 0)
        assert caught.value.hint
    assert shown(next_after("0 0 30 2 MON", ms("2024-01-01T00:00"))) == "2024-02-05 00:00"


def test_a_rare_date_is_found_across_a_century_without_a_leap_day() -> None:
    """Ours: the year 2100 has no February 29."""
    assert shown(next_after("0 0 29 2 *", ms("2096-03-01T00:00"))) == "2104-02-29 00:00"
    assert shown(next_after("0 0 29 2 */7", ms("2088-03-01T00:00"))) == "2128-02-29 00:00"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 12 * * ?", "has 6 fields"),
        ("60 * * * *", "'60' as its minute"),
        ("* 24 * * *", "'24' as its hour"),
        ("* * 0 * *", "'0' as its day of the month"),
        ("* * * 13 *", "'13' as its month"),
        ("* * * * 8", "'8' as its day of the week"),
        ("* * * FOO *", "'FOO' as its month"),
        ("* * L * *", "'L' as its day of the month"),
        ("* * ? * *", "as its day of the month"),
        ("* * * * MON#2", "as its day of the week"),
        ("1,,2 * * * *", "has '' as its minute"),
        ("-5 * * * *", "as its minute"),
        ("²5 * * * *", "as its minute"),
        ("* 22-2 * * *", "runs backwards"),
        ("5-0 * * * *", "runs backwards"),
        ("*/0 * * * *", "the step 0"),
        ("*/90 * * * *", "the step 90"),
        ("5/15 * * * *", "the step '5/15'"),
        ("9" * 5000 + " * * * *", "longer than"),
        ("@reboot", "not a shorthand"),
        ("@every 5m", "not a shorthand"),
    ],
)
def test_an_error_about_a_wrong_expression_says_where_it_is_and_what_to_write(
    expression: str, words: str
) -> None:
    """Ours: errors are typed and have a hint."""
    with pytest.raises(InvalidArgument) as caught:
        parse_cron(expression)
    assert words in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 200


def test_the_hint_for_hours_across_midnight_can_be_copied() -> None:
    """Ours: the hint is a valid field."""
    with pytest.raises(InvalidArgument) as caught:
        parse_cron("0 22-2 * * *")
    assert caught.value.hint == "write 22-23,0-2"
    assert parse_cron("0 22-23,0-2 * * *").hours == (0, 1, 2, 22, 23)


@pytest.mark.parametrize(
    "zone", ["Nowhere/Atlantis", "", "America", "../etc/passwd", "/etc/localtime", "a\0b"]
)
def test_an_unknown_time_zone_raises_an_error_with_a_hint(zone: str) -> None:
    """Ours: this includes directories and paths that lead out of the database."""
    with pytest.raises(InvalidArgument, match=r"time zone .* is unknown") as caught:
        next_after("* * * * *", 0, zone)
    assert "Europe/Berlin" in (caught.value.hint or "")


# Daylight saving


def test_a_time_that_the_clock_skips_fires_at_the_clock_change() -> None:
    """Ours: skipped times fire once at the clock change, and normally the next day."""
    assert upcoming("30 2 * * *", "2024-03-30T12:00", 2, "Europe/Berlin") == [
        "2024-03-31 03:00", "2024-04-01 02:30",
    ]  # fmt: skip


def test_all_times_skipped_by_one_clock_change_fire_once() -> None:
    """Ours: four quarters of a skipped hour, and the time at its end, are one occurrence."""
    assert upcoming("*/15 * * * *", "2024-03-31T01:40", 3, "Europe/Berlin") == [
        "2024-03-31 01:45", "2024-03-31 03:00", "2024-03-31 03:15",
    ]  # fmt: skip


def test_a_time_that_occurs_twice_fires_once() -> None:
    """Ours: it fires at its first occurrence."""
    zone = "America/New_York"
    first = next_after("30 1 * * *", ms("2024-11-02T12:00", zone), zone)
    assert first == ms("2024-11-03T01:30", zone, fold=0)
    assert shown(next_after("30 1 * * *", first, zone), zone) == "2024-11-04 01:30"
    second_pass = ms("2024-11-03T01:10", zone, fold=1)
    assert shown(next_after("30 1 * * *", second_pass, zone), zone) == "2024-11-04 01:30"


def test_an_hourly_timer_fires_once_in_an_hour_that_occurs_twice() -> None:
    """Ours: an hour that the clocks show twice is counted once."""
    assert upcoming("0 * * * *", "2024-11-03T00:00", 3, "America/New_York") == [
        "2024-11-03 01:00", "2024-11-03 02:00", "2024-11-03 03:00",
    ]  # fmt: skip


def test_a_day_that_a_time_zone_skipped_fires_at_the_clock_change() -> None:
    """Ours: Samoa skipped December 30, 2011."""
    assert upcoming("0 9 * * *", "2011-12-29T10:00", 2, "Pacific/Apia") == [
        "2011-12-31 00:00", "2011-12-31 09:00",
    ]  # fmt: skip


def test_the_end_of_the_calendar_ends_the_search() -> None:
    """Ours: the search ends for any time, however late."""
    assert next_after("* * * * *", ms("9998-12-31T23:59")) is None
    assert next_after("* * * * *", 2**63) is None


# Compared with a walk over every minute


def _numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pairs = st.tuples(number, number).map(sorted)
    step = st.integers(1, high - low)
    part = st.one_of(
        number.map(str),
        pairs.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(pairs, step).map(lambda given: f"{given[0][0]}-{given[0][1]}/{given[1]}"),
        step.map(lambda number: f"*/{number}"),
        st.just("*"),
    )
    return st.lists(part, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(
    _numbers(0, 59),
    _numbers(0, 23),
    st.one_of(st.just("*"), _numbers(1, 28)),
    st.one_of(st.just("*"), _numbers(1, 12), st.sampled_from(["JAN-JUN", "feb,MAR"])),
    st.one_of(st.just("*"), _numbers(0, 7), st.sampled_from(["MON-FRI", "sun", "SAT,WED"])),
).map(" ".join)
NEAR_SHIFTS = st.sampled_from(
    ["2024-03-31T00:20", "2024-10-26T23:00", "2024-03-10T05:00", "2024-11-03T04:00", "2024-04-06T13:00",
     "2024-10-05T14:00", "2024-02-28T20:00", "2023-12-31T22:00"]
)  # fmt: skip


def _allows(word: str, number: int, low: int, high: int) -> bool:
    """Return whether a field allows a number, judged by its text."""
    for part in word.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start = low if span == "*" else int(_NAMES.get(first.upper(), first))
        end = high if span == "*" else int(_NAMES.get(last.upper(), last)) if last else start
        if start <= number <= end and (number - start) % int(step or 1) == 0:
            return True
    return False


def _matches(expression: str, wall: datetime) -> bool:
    minute, hour, day, month, weekday = expression.split()
    by_month = _allows(day, wall.day, 1, 31)
    sunday_last = wall.isoweekday()
    by_week = _allows(weekday, sunday_last % 7, 0, 6) or (sunday_last == 7 and _allows(weekday, 7, 0, 6))
    either = not day.startswith("*") and not weekday.startswith("*")
    return (
        _allows(minute, wall.minute, 0, 59)
        and _allows(hour, wall.hour, 0, 23)
        and _allows(month, wall.month, 1, 12)
        and (by_month or by_week if either else by_month and by_week)
    )


def _walk(expression: str, at_ms: int, zone: str, minutes: int) -> int | None:
    """Find the next time by checking the clock every minute, remembering the latest time shown."""
    latest = max(_wall((at_ms // 60_000 - back) * 60_000, zone) for back in range(180))
    for step in range(1, minutes):
        at = (at_ms // 60_000 + step) * 60_000
        wall = _wall(at, zone)
        while latest < wall:
            latest += timedelta(minutes=1)
            if _matches(expression, latest):
                return at
    return None


def _wall(at_ms: int, zone: str) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(
    expression=EXPRESSIONS, near=NEAR_SHIFTS, later=st.integers(0, 90 * 60_000), zone=st.sampled_from(ZONES)
)
def test_the_next_time_agrees_with_a_walk_over_every_minute(
    expression: str, near: str, later: int, zone: str
) -> None:
    """Ours: the search is correct in zones with shifts of an hour, half an hour and none."""
    at = ms(near) + later
    found, walked = next_after(expression, at, zone), _walk(expression, at, zone, minutes=3_000)
    if walked is not None:
        assert (shown(found, zone), found) == (shown(walked, zone), walked)
    else:
        assert found is None or found >= at + 2_999 * 60_000


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES), at=st.integers(0, 4_000_000_000_000))
def test_times_are_ascending_and_complete(expression: str, zone: str, at: int) -> None:
    """Ours: asking for each next time skips none of them."""
    times = list(islice(times_after(expression, at, zone), 5))
    assert times == sorted(set(times))
    for earlier, later in zip([at, *times], times, strict=False):
        assert next_after(expression, earlier, zone) == later
        assert next_after(expression, later - 1, zone) == later
