def minutes(clock: str) -> int:
    hours, rest = clock.split(":")
    return int(hours) * 60 + int(rest)


def clock_time(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def free_slots(meetings: list[list[str]], opens: str, closes: str, least: int) -> list[str]:
    """Return the gaps of at least `least` minutes that meetings, which may overlap, leave in a day."""
    free: list[str] = []
    at = minutes(opens)
    day_end = (closes, closes)
    for start, end in [*sorted((a, b) for a, b in meetings), day_end]:
        begin = min(minutes(start), minutes(closes))
        if begin - at >= max(least, 1):
            free.append(f"{clock_time(at)}–{clock_time(begin)}")
        at = max(at, minutes(end))
    return free
