def solve_linear(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a system of linear equations; None unless there is exactly one solution."""
    size = len(matrix)
    rows = [[*map(float, row), float(value)] for row, value in zip(matrix, right, strict=True)]
    for step in range(size):
        pivot = max(range(step, size), key=lambda row: abs(rows[row][step]))
        if abs(rows[pivot][step]) < 1e-12:
            return None
        rows[step], rows[pivot] = rows[pivot], rows[step]
        for row in range(size):
            if row != step:
                factor = rows[row][step] / rows[step][step]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[step], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
