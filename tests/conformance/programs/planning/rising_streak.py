import bisect


def rising_streak(values: list[int]) -> list[int]:
    """Return the longest strictly increasing subsequence; of several, the one with the lowest ends."""
    tails: list[int] = []
    tail_places: list[int] = []
    before: list[int | None] = []
    for place, value in enumerate(values):
        length = bisect.bisect_left(tails, value)
        before.append(tail_places[length - 1] if length else None)
        tails[length : length + 1] = [value]
        tail_places[length : length + 1] = [place]
    streak: list[int] = []
    at = tail_places[-1] if tail_places else None
    while at is not None:
        streak.append(values[at])
        at = before[at]
    return streak[::-1]
