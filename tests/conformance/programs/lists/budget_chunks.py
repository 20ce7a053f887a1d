def split_when(items: list[str], costs: list[int], budget: int) -> list[list[str]]:
    """Consecutive groups whose costs stay within the budget; what costs too much alone stands alone."""
    groups: list[list[str]] = []
    left = 0
    for item, cost in zip(items, costs, strict=True):
        if groups and cost <= left:
            groups[-1].append(item)
            left -= cost
        else:
            groups.append([item])
            left = budget - cost
    return groups


def budget_chunks(messages: list[str], budget: int) -> list[list[str]]:
    """Messages in batches of at most `budget` bytes of UTF-8."""
    return split_when(messages, [len(message.encode()) for message in messages], budget)
