def call_cycles(calls: dict[str, list[str]]) -> list[list[str]]:
    """Return the groups of functions that call each other in a cycle, sorted, including direct recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in calls.get(name, []):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            place = stack.index(name)
            group = stack[place:]
            stack[place:] = []
            if len(group) > 1 or name in calls.get(name, []):
                groups.append(sorted(group))

    for name in calls:
        if name not in index:
            visit(name)
    return sorted(groups)
