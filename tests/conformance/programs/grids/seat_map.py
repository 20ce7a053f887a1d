def seat_map(rows: int, columns: int, groups: list[int]) -> list[str] | None:
    """Seat groups side by side, the largest first, each in the fullest row that has room for it."""
    free = [columns] * rows
    seats: list[list[str]] = [[] for _ in range(rows)]
    order = sorted(range(len(groups)), key=lambda group: (-groups[group], group))
    for group in order:
        fitting = [row for row in range(rows) if free[row] >= groups[group]]
        if not fitting:
            return None
        row = min(fitting, key=lambda row: free[row])
        free[row] -= groups[group]
        seats[row] += [chr(ord("A") + group)] * groups[group]
    return ["".join(taken).ljust(columns, "·") for taken in seats]
