def build_order(needs: dict[str, list[str]]) -> dict[str, list[str]]:
    """Order steps so that each follows what it needs, by name where possible; or return a cycle."""
    waiting = {name: set(others) for name, others in needs.items()}
    for others in needs.values():
        for other in others:
            waiting.setdefault(other, set())
    order: list[str] = []
    while ready := sorted(name for name, others in waiting.items() if not others - set(order)):
        order.append(ready[0])
        waiting.pop(ready[0])
    if not waiting:
        return {"order": order}
    walk = [min(waiting)]
    while walk.count(walk[-1]) < 2:
        walk.append(min(other for other in waiting[walk[-1]] if other in waiting))
    return {"cycle": walk[walk.index(walk[-1]) :]}
