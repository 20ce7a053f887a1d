def edit_script(old: str, new: str) -> list[str]:
    """Return the fewest edits between two texts: `=x` keeps, `-x` deletes, `+x` inserts (after deletions)."""
    rows, columns = len(old) + 1, len(new) + 1
    cost = [[0] * columns for _ in range(rows)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            if i == rows - 1 or j == columns - 1:
                cost[i][j] = (rows - 1 - i) + (columns - 1 - j)
            elif old[i] == new[j]:
                cost[i][j] = cost[i + 1][j + 1]
            else:
                cost[i][j] = 1 + min(cost[i + 1][j], cost[i][j + 1])
    script: list[str] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            script.append(f"={old[i]}")
            i, j = i + 1, j + 1
        elif i < len(old) and (j == len(new) or cost[i + 1][j] <= cost[i][j + 1]):
            script.append(f"-{old[i]}")
            i += 1
        else:
            script.append(f"+{new[j]}")
            j += 1
    return script
