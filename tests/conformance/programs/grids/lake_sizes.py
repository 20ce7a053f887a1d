def lake_sizes(land: list[str]) -> list[int]:
    """Return the sizes of lakes (`~`) surrounded by land, largest first; water at the edge is the sea."""
    water = {(x, y) for y, row in enumerate(land) for x, mark in enumerate(row) if mark == "~"}
    sizes: list[int] = []
    while water:
        todo = [water.pop()]
        size, sea = 0, False
        while todo:
            x, y = todo.pop()
            size += 1
            sea = sea or x == 0 or y == 0 or y == len(land) - 1 or x == len(land[y]) - 1
            for place in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if place in water:
                    water.remove(place)
                    todo.append(place)
        if not sea:
            sizes.append(size)
    return sorted(sizes, reverse=True)
