from datetime import date, timedelta


def business_day(start: str, days: int, holidays: list[str]) -> str:
    """Return the date `days` working days after a date (before it if negative), skipping holidays."""
    closed = {date.fromisoformat(holiday) for holiday in holidays}
    day = date.fromisoformat(start)
    step = timedelta(days=1 if days >= 0 else -1)
    left = abs(days)
    while left or day.weekday() >= 5 or day in closed:
        day += step
        if day.weekday() < 5 and day not in closed:
            left = max(left - 1, 0)
    return day.isoformat()
