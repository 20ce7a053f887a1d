from collections import deque


def rival_teams(rivals: list[list[str]]) -> list[list[str]] | None:
    """Split people into two teams without rivals in the same team; None if that is impossible."""
    against: dict[str, list[str]] = {}
    for one, other in rivals:
        against.setdefault(one, []).append(other)
        against.setdefault(other, []).append(one)
    team: dict[str, int] = {}
    for first in sorted(against):
        if first in team:
            continue
        team[first] = 0
        queue = deque([first])
        while queue:
            name = queue.popleft()
            for other in against[name]:
                if other not in team:
                    team[other] = 1 - team[name]
                    queue.append(other)
                elif team[other] == team[name]:
                    return None
    return [sorted(name for name in team if team[name] == side) for side in (0, 1)]
