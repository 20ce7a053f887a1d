class Circles:
    """Disjoint sets of names (union by size, with path halving)."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}
        self.size: dict[str, int] = {}

    def find(self, name: str) -> str:
        if name not in self.parent:
            self.parent[name] = name
            self.size[name] = 1
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, one: str, other: str) -> bool:
        a, b = self.find(one), self.find(other)
        if a == b:
            return False
        if self.size[a] < self.size[b]:
            a, b = b, a
        self.parent[b] = a
        self.size[a] += self.size[b]
        return True


def friend_circles(meetings: list[list[str]]) -> dict[str, object]:
    """Return the groups of people who know each other through others, and the meetings that joined none."""
    circles = Circles()
    idle = [place for place, (one, other) in enumerate(meetings) if not circles.join(one, other)]
    groups: dict[str, list[str]] = {}
    for name in sorted(circles.parent):
        groups.setdefault(circles.find(name), []).append(name)
    return {"circles": sorted(groups.values(), key=lambda group: (-len(group), group)), "idle": idle}
