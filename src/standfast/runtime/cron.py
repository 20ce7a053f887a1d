"""Cron expressions: when is the next time?

Theory of operation
-------------------
An expression names times on the clock of a wall: minute, hour, day of the month, month, day of the week. The
next one is found by walking over days that match, then over its hours and minutes, and each time on the wall
is made an instant by the rules of its time zone.

Rules
-----
1. If both days are restricted, one of them has to match, as in every cron; a field that begins with `*` is
   not restricted. Sunday is 0 and 7.
2. A time that the clock skips is at the instant of the shift, so all that it skips together is once. A time
   that the clock has twice is the first of them.
3. An expression that no day can ever match is refused when it is read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from standfast.errors import InvalidArgument

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_PART: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1)
_MAX_CHARS: Final = 256
_LAST_DAY: Final = date(9998, 12, 31)


@dataclass(frozen=True, slots=True)
class _Field:
    """What one place of an expression may hold."""

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


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression that was read. `either` says that one of the two days is enough."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def has_day(self, day: date) -> bool:
        """Whether the day matches."""
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either else by_month and by_week

    def times_from(self, start: datetime) -> Iterator[datetime]:
        """The times on the wall that match, from *start* on, in order."""
        day = start.date()
        while day <= _LAST_DAY:
            if day.month not in self.months:
                day = _first_of_next_month(day)
                continue
            if self.has_day(day):
                yield from self._times_of(day, start)
            day += timedelta(days=1)

    def _times_of(self, day: date, start: datetime) -> Iterator[datetime]:
        first_hour = start.hour if day == start.date() else 0
        for hour in self.hours[bisect_left(self.hours, first_hour) :]:
            for minute in self.minutes:
                time = datetime(day.year, day.month, day.day, hour, minute)
                if time >= start:
                    yield time


def next_after(expression: str, at_ms: int, timezone: str = "UTC") -> int | None:
    """The first time of the expression that is later than *at_ms*; None past the year 9998.

    Errors: `InvalidArgument` for an expression or a time zone that cannot be read.
    """
    return next(times_after(expression, at_ms, timezone), None)


def times_after(expression: str, at_ms: int, timezone: str = "UTC") -> Iterator[int]:
    """The times of the expression that are later than *at_ms*, one after the other."""
    cron, zone = parse_cron(expression), time_zone(timezone)
    try:
        start = (_EPOCH + timedelta(milliseconds=at_ms)).replace(tzinfo=UTC).astimezone(zone)
    except OverflowError:
        return
    last = at_ms
    # What the wall showed before this minute is no later than `at_ms`, whichever way the clock was set.
    for time in cron.times_from(start.replace(second=0, microsecond=0, tzinfo=None)):
        if (found := _instant_ms(time, zone)) > last:
            last = found
            yield found


@lru_cache(maxsize=256)
def parse_cron(expression: str) -> Cron:
    """Read an expression: five fields, or a shorthand such as `@daily`."""
    text = expression.strip()
    if len(text) > _MAX_CHARS:
        raise _wrong(expression, f"is longer than {_MAX_CHARS} characters", _HOW)
    if text.startswith("@"):
        text = _SHORTHANDS.get(text.lower()) or _unknown_shorthand(text)
    words = text.split()
    if len(words) != len(_FIELDS):
        raise _wrong(expression, f"has {len(words)} fields", _HOW)
    minutes, hours, days, months, weekdays = (
        _read(field, word, expression) for field, word in zip(_FIELDS, words, strict=True)
    )
    cron = Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either=not words[2].startswith("*") and not words[4].startswith("*"),
    )
    if not cron.either and not any(day <= _LONGEST[month - 1] for month in months for day in days):
        raise _wrong(expression, "names a day that no month has", "February ends on the 29th, at the latest")
    return cron


@lru_cache(maxsize=256)
def time_zone(name: str) -> tzinfo:
    """The time zone of a name such as `Europe/Berlin`."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a directory of zones, and a name that leads out of them, too
        raise InvalidArgument(
            f"there is no time zone {name[:80]!r}",
            hint="write a name such as Europe/Berlin; a system without time zones needs the package tzdata",
        ) from None


_HOW: Final = "write five: minute hour day month weekday, as in '30 7 * * MON-FRI'; there are no seconds"


def _read(field: _Field, word: str, expression: str) -> frozenset[int]:
    """The numbers that a field allows."""
    return frozenset(number for part in word.split(",") for number in _part(field, part, expression))


def _part(field: _Field, part: str, expression: str) -> range:
    """One of the alternatives: a number, a name, a range or everything, with a step or without."""
    found = _PART.fullmatch(part)
    if found is None:
        how = "write 5, 1-5, 1,3,5, *, */15 or 10-50/20"
        raise _wrong(expression, f"has {part!r} as its {field.name}", how)
    star, first, last, step = found.groups()
    if step is not None and star is None and last is None:
        how = f"write {first}-{field.high}/{step}"
        raise _wrong(expression, f"has the step {part!r} from one {field.name}", how)
    if star:
        low, high = field.low, 6 if field.names is _WEEKDAYS else field.high
    else:
        low, high = _ends(field, first, last or first, expression)
    return range(low, high + 1, _step(field, step, expression))


def _ends(field: _Field, first: str, last: str, expression: str) -> tuple[int, int]:
    """The first and the last number of a range. The week may end with Sunday, however that is written."""
    low, high = _number(field, first, expression), _number(field, last, expression)
    if field.names is _WEEKDAYS and low > high == 0:
        high = 7
    if low > high:
        how = f"write {first}-{field.high},{field.low}-{last}"
        raise _wrong(expression, f"has the {field.name} {first}-{last}, which runs backwards", how)
    return low, high


def _step(field: _Field, step: str | None, expression: str) -> int:
    """A step that leads anywhere: cron takes `*/90` for an hour, and who writes it means something else."""
    if step is None:
        return 1
    if not 1 <= int(step) <= field.high - field.low:
        raise _wrong(
            expression,
            f"has the step {step} in its {field.name}",
            f"it may be 1 to {field.high - field.low}; for other spans use `every_ms`",
        )
    return int(step)


def _number(field: _Field, text: str, expression: str) -> int:
    """A number of the field, or the one that a name stands for."""
    if text.upper() in field.names:
        return field.names.index(text.upper()) + field.low
    if not text.isdecimal() or not field.low <= int(text) <= field.high:
        names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        raise _wrong(
            expression, f"has {text!r} as its {field.name}", f"it may be {field.low} to {field.high}{names}"
        )
    return int(text)


def _unknown_shorthand(text: str) -> str:
    raise _wrong(text, "is no shorthand", f"there are {', '.join(_SHORTHANDS)}")


def _wrong(expression: str, problem: str, hint: str) -> InvalidArgument:
    return InvalidArgument(f"cron expression {expression[:80]!r} {problem}", hint=hint)


def _first_of_next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _instant_ms(time: datetime, zone: tzinfo) -> int:
    """When the wall shows *time*, for the first time; if it skips it, when it does so."""
    instant = time.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) != time:
        instant = _shift(time.replace(tzinfo=zone, fold=1).astimezone(UTC), instant, zone)
    return (instant.replace(tzinfo=None) - _EPOCH) // timedelta(milliseconds=1)


def _shift(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The first second between the two that has the later one's offset."""
    offset = after.astimezone(zone).utcoffset()
    low, high = 0, (after - before) // timedelta(seconds=1)
    while low < high:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle + 1
    return before + timedelta(seconds=low)
