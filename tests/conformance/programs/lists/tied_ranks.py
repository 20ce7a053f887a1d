def tied_ranks(scores: dict[str, float], method: str) -> dict[str, float]:
    """Rank scores from the highest down; ties get the best place or the average, or leave no gap."""
    ordered = sorted(scores.values(), reverse=True)
    distinct = sorted(set(ordered), reverse=True)
    ranks: dict[str, float] = {}
    for name in sorted(scores, key=lambda name: (-scores[name], name)):
        score = scores[name]
        best, ties = ordered.index(score) + 1, ordered.count(score)
        if method == "average":
            ranks[name] = best + (ties - 1) / 2
        elif method == "dense":
            ranks[name] = distinct.index(score) + 1
        else:
            ranks[name] = best
    return ranks
