def postage_ways(amount: int, stamps: list[int]) -> dict[str, str]:
    """Return the number of ways in which stamps make an amount, regardless of order and by order, as text."""
    kinds = sorted({stamp for stamp in stamps if stamp > 0})
    unordered = [1] + [0] * amount
    for stamp in kinds:
        for total in range(stamp, amount + 1):
            unordered[total] += unordered[total - stamp]
    ordered = [1]
    for total in range(1, amount + 1):
        ordered.append(sum(ordered[total - stamp] for stamp in kinds if stamp <= total))
    return {"unordered": str(unordered[amount]), "ordered": str(ordered[amount])}
