import bisect


def moving_median(values: list[float], window: int) -> list[float | None]:
    """Return the median of the last `window` values at each position, null where there are fewer."""
    if window < 1:
        raise ValueError("a window has at least one value")
    ordered: list[float] = []
    medians: list[float | None] = []
    for place, value in enumerate(values):
        bisect.insort(ordered, value)
        if place >= window:
            ordered.pop(bisect.bisect_left(ordered, values[place - window]))
        if place < window - 1:
            medians.append(None)
        else:
            low, high = ordered[(window - 1) // 2], ordered[window // 2]
            medians.append((low + high) / 2)
    return medians
