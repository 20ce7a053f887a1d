"""Cron expressions, and the times that match them.

Theory of operation
-------------------
An expression describes wall-clock times by minute, hour, day of the month, month and day of the week. The
next time is found by iterating over the matching days, then over their hours and minutes; the rules of the
time zone convert each wall-clock time to an instant.

Rules
-----
1. If both day fields are restricted, one of them has to match, as in every cron; a field that begins with `*`
   is not restricted. Sunday is 0 and 7.
2. A time that the clock skips occurs at the instant of the shift, so all skipped times of one shift occur
   once, together. A time that the clock shows twice occurs only the first time.
3. An expression that no day can ever match is refused when it is parsed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from standfast.errors import InvalidArgument

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_PART: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1)
_MAX_CHARS: Final = 256
_LAST_DAY: Final = date(9998, 12, 31)
_FIELDS_HINT: Final = (
    "write five: minute hour day month weekday, as in '30 7 * * MON-FRI'; there are no seconds"
)


class _Field(NamedTuple):
    """The numbers and names that one field of an expression may have."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _WEEKDAYS),
)


class _Wrong(Exception):
    """A part of an expression that is wrong: the problem, and a hint."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression. If `either`, a match of one of the two day fields is enough."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def times_from(self, start: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times that match, from `start` on, in order."""
        day, first_hour = start.date(), start.hour
        while day <= _LAST_DAY:
            if day.month not in self.months:
                day, first_hour = date(day.year + day.month // 12, day.month % 12 + 1, 1), 0
                continue
            by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
            if (by_month or by_week) if self.either else (by_month and by_week):
                for hour in self.hours[bisect_left(self.hours, first_hour) :]:
                    for minute in self.minutes:
                        time = datetime(day.year, day.month, day.day, hour, minute)
                        if time >= start:
                            yield time
            day, first_hour = day + timedelta(days=1), 0


def times_after(expression: str, at_ms: int, timezone: str = "UTC") -> Iterator[int]:
    """Yield the times of `expression` that are later than `at_ms`, in order."""
    cron, zone = parse_cron(expression), time_zone(timezone)
    try:
        start = (_EPOCH + timedelta(milliseconds=at_ms)).replace(tzinfo=UTC).astimezone(zone)
    except OverflowError:
        return
    last = at_ms
    # A wall-clock time before this minute is never later than `at_ms`, even if the clock was shifted.
    for time in cron.times_from(start.replace(second=0, microsecond=0, tzinfo=None)):
        if (found := _instant_ms(time, zone)) > last:
            last = found
            yield found


@lru_cache(maxsize=256)
def parse_cron(expression: str) -> Cron:
    """Parse an expression: five fields, or a shorthand such as `@daily`."""
    try:
        return _parse(expression.strip())
    except _Wrong as wrong:
        problem, hint = wrong.args
        raise InvalidArgument(f"cron expression {expression[:80]!r} {problem}", hint=hint) from None


def _parse(text: str) -> Cron:
    if len(text) > _MAX_CHARS:
        raise _Wrong(f"is longer than {_MAX_CHARS} characters", _FIELDS_HINT)
    if text.startswith("@"):
        if text.lower() not in _SHORTHANDS:
            raise _Wrong("is not a shorthand", f"use one of {', '.join(_SHORTHANDS)}")
        text = _SHORTHANDS[text.lower()]
    words = text.split()
    if len(words) != len(_FIELDS):
        raise _Wrong(f"has {len(words)} fields", _FIELDS_HINT)
    minutes, hours, days, months, weekdays = (
        {number for part in word.split(",") for number in _numbers(field, part)}
        for field, word in zip(_FIELDS, words, strict=True)
    )
    either = not words[2].startswith("*") and not words[4].startswith("*")
    if not either and not any(day <= _LONGEST[month - 1] for month in months for day in days):
        raise _Wrong("names a day that no month has", "February ends on the 29th, at the latest")
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(day % 7 for day in weekdays),
        either=either,
    )


def _numbers(field: _Field, part: str) -> range:
    """Return the numbers of one part of a field: a number, a name, a range or `*`, with or without a step."""
    found = _PART.fullmatch(part)
    if found is None:
        raise _Wrong(f"has {part!r} as its {field.name}", "write 5, 1-5, 1,3,5, *, */15 or 10-50/20")
    star, first, last, step = found.groups(default="")
    is_week = field.names is _WEEKDAYS
    if step and not star and not last:
        raise _Wrong(f"has the step {part!r} from one {field.name}", f"write {first}-{field.high}/{step}")
    if star:
        low, high = field.low, 6 if is_week else field.high
    else:
        low, high = _number(field, first), _number(field, last or first)
        if is_week and low > high == 0:
            high = 7  # a range may end with Sunday as 0, 7 or SUN
    if low > high:
        hint = f"write {first}-{field.high},{field.low}-{last}"
        raise _Wrong(f"has the {field.name} {first}-{last}, which runs backwards", hint)
    most = field.high - field.low
    if step and not 1 <= int(step) <= most:  # cron would run `*/90` every hour, surely by mistake
        hint = f"it may be 1 to {most}; for other spans use `every_ms`"
        raise _Wrong(f"has the step {step} in its {field.name}", hint)
    return range(low, high + 1, int(step or 1))


def _number(field: _Field, text: str) -> int:
    """Return the value of a number or a name in a field."""
    if text.upper() in field.names:
        return field.names.index(text.upper()) + field.low
    if not text.isdecimal() or not field.low <= int(text) <= field.high:
        names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        hint = f"it may be {field.low} to {field.high}{names}"
        raise _Wrong(f"has {text!r} as its {field.name}", hint)
    return int(text)


@lru_cache(maxsize=256)
def time_zone(name: str) -> tzinfo:
    """Return the time zone of a name such as `Europe/Berlin`."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also for a directory, or a path outside of it
        raise InvalidArgument(
            f"time zone {name[:80]!r} is unknown",
            hint="use a name such as Europe/Berlin; on a system without time zones, install tzdata",
        ) from None


def _instant_ms(time: datetime, zone: tzinfo) -> int:
    """Return when the wall clock shows `time` first; if it skips `time`, the instant of that shift."""
    instant = time.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) != time:
        # The shift is the first second after `before` that has the later offset.
        before = time.replace(tzinfo=zone, fold=1).astimezone(UTC)
        offset = instant.astimezone(zone).utcoffset()
        seconds = range((instant - before) // timedelta(seconds=1))
        shift = bisect_left(
            seconds,
            True,
            key=lambda s: (before + timedelta(seconds=s)).astimezone(zone).utcoffset() == offset,
        )
        instant = before + timedelta(seconds=shift)
    return (instant.replace(tzinfo=None) - _EPOCH) // timedelta(milliseconds=1)
