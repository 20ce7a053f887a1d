MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_before(year: int, month: int) -> int:
    """Return the days from 1 January of year 1 to the first of a month, by arithmetic alone."""
    past = year - 1
    leap_day = 1 if month > 2 and is_leap(year) else 0
    return past * 365 + past // 4 - past // 100 + past // 400 + sum(MONTH_DAYS[: month - 1]) + leap_day


def calendar_page(year: int, month: int) -> list[str]:
    """Return a month as lines of weeks that start on Monday."""
    days = MONTH_DAYS[month - 1] + (1 if month == 2 and is_leap(year) else 0)
    blank = days_before(year, month) % 7
    cells = ["  "] * blank + [f"{day:2d}" for day in range(1, days + 1)]
    weeks = [" ".join(cells[start : start + 7]) for start in range(0, len(cells), 7)]
    return ["Mo Tu We Th Fr Sa Su", *weeks]
