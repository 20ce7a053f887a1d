def gift_draws(people: list[str], couples: list[list[str]]) -> dict[str, object]:
    """Return the number of gift draws, and the first; people give neither to themselves nor to a partner."""
    barred = {(a, b) for a, b in couples} | {(b, a) for a, b in couples}
    givers = sorted(people)
    first: dict[str, str] = {}
    drawn: dict[str, str] = {}

    def draw(place: int) -> int:
        nonlocal first
        if place == len(givers):
            first = first or dict(drawn)
            return 1
        giver, found = givers[place], 0
        for taker in givers:
            if taker != giver and taker not in drawn.values() and (giver, taker) not in barred:
                drawn[giver] = taker
                found += draw(place + 1)
                drawn.pop(giver)
        return found

    return {"count": draw(0), "first": first}
