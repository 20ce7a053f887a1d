def exact_determinant(matrix: list[list[int]]) -> str:
    """Return the determinant of an integer matrix as text, without rounding (Bareiss)."""
    rows = [list(row) for row in matrix]
    size, sign, before = len(rows), 1, 1
    for step in range(size - 1):
        if rows[step][step] == 0:
            others = [row for row in range(step + 1, size) if rows[row][step]]
            if not others:
                return "0"
            rows[step], rows[others[0]] = rows[others[0]], rows[step]
            sign = -sign
        for i in range(step + 1, size):
            for j in range(step + 1, size):
                rows[i][j] = (rows[i][j] * rows[step][step] - rows[i][step] * rows[step][j]) // before
        before = rows[step][step]
    return str(sign * rows[-1][-1]) if rows else "1"
