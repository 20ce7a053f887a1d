def compare_tags(mine: list[str], theirs: list[str]) -> dict[str, object]:
    """Return how two sets of tags relate, and how similar they are, ignoring case."""
    a, b = {tag.casefold() for tag in mine}, {tag.casefold() for tag in theirs}
    if a == b:
        relation = "equal"
    elif a < b:
        relation = "within"
    elif a > b:
        relation = "around"
    elif a.isdisjoint(b):
        relation = "apart"
    else:
        relation = "overlapping"
    likeness = len(a & b) / len(a | b) if a or b else 1.0
    return {"relation": relation, "both": sorted(a & b), "either": sorted(a ^ b), "likeness": likeness}
