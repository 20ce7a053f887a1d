import math


def growth_rate(start: float, end: float, years: int, tolerance: float = 1e-12) -> float | None:
    """Return the yearly rate that takes one amount to another, by Newton's method; None if there is none."""
    if start <= 0 or end < 0 or years <= 0:
        return None
    ratio = end / start
    guess = 1.0
    for _ in range(500):
        value = math.pow(guess, years) - ratio
        slope = years * math.pow(guess, years - 1)
        if abs(value) <= tolerance * max(1.0, ratio):
            break
        guess -= value / slope
    return round((guess - 1) * 100, 6)
