def split_when(items: list[str], costs: list[int], budget: int) -> list[list[str]]:
    """Split items into consecutive groups within the budget; an item that exceeds it has its own group."""
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
    """Split messages into batches of at most `budget` bytes of UTF-8."""
    return split_when(messages, [len(message.encode()) for message in messages], budget)
