import statistics


def score_summary(scores: list[float]) -> dict[str, float | list[float]] | None:
    """Return mean, median, modes and standard deviation of scores, and those two deviations from the mean."""
    if not scores:
        return None
    mean = statistics.fmean(scores)
    spread = statistics.pstdev(scores)
    return {
        "mean": mean,
        "median": statistics.median(scores),
        "modes": sorted(statistics.multimode(scores)),
        "spread": spread,
        "outliers": [score for score in scores if spread and abs(score - mean) >= 2 * spread],
    }
