import heapq
from collections import defaultdict


def cheapest_route(roads: list[tuple[str, str, float]], start: str, goal: str) -> dict[str, object] | None:
    """Return the cheapest route along two-way roads and its cost; of equal ones, the first by name."""
    near: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for a, b, cost in roads:
        near[a].append((b, cost))
        near[b].append((a, cost))
    queue: list[tuple[float, tuple[str, ...]]] = [(0, (start,))]
    settled: set[str] = set()
    while queue:
        cost, path = heapq.heappop(queue)
        place = path[-1]
        if place == goal:
            return {"cost": cost, "path": list(path)}
        if place in settled:
            continue
        settled.add(place)
        for other, more in near[place]:
            if other not in settled:
                heapq.heappush(queue, (cost + more, (*path, other)))
    return None
