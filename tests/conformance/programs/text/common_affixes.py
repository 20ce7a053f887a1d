def shared_prefix(words: list[str]) -> str:
    """Return the longest prefix that all words share."""
    first, last = min(words), max(words)
    for place, letter in enumerate(first):
        if place >= len(last) or last[place] != letter:
            return first[:place]
    return first


def common_affixes(words: list[str]) -> tuple[str, str]:
    """Return the longest prefix and suffix that all words share, without overlap in any of them."""
    if not words:
        return "", ""
    prefix = shared_prefix(words)
    tails = [word[len(prefix) :][::-1] for word in words]
    return prefix, shared_prefix(tails)[::-1]
