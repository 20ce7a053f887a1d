Cell = tuple[int, int]


def neighbours(cell: Cell) -> list[Cell]:
    """Return the eight cells around a cell."""
    x, y = cell
    return [(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy]


def cell_colony(picture: list[str], generations: int) -> list[str]:
    """Return a colony after `generations` steps (born with 3 neighbours, alive with 2 or 3), cropped."""
    alive = {(x, y) for y, row in enumerate(picture) for x, mark in enumerate(row) if mark == "#"}
    for _ in range(generations):
        counts: dict[Cell, int] = {}
        for cell in alive:
            for near in neighbours(cell):
                counts[near] = counts.get(near, 0) + 1
        alive = {cell for cell, count in counts.items() if count == 3 or (count == 2 and cell in alive)}
    if not alive:
        return []
    xs, ys = [x for x, _ in alive], [y for _, y in alive]
    columns = range(min(xs), max(xs) + 1)
    return ["".join("#" if (x, y) in alive else "." for x in columns) for y in range(min(ys), max(ys) + 1)]
