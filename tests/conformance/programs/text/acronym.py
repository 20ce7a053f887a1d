SMALL_WORDS = frozenset({"a", "an", "and", "de", "for", "la", "of", "the", "und"})


def acronym(phrase: str, dotted: bool = False) -> str:
    """Return the initials of a phrase in capitals; small words count only at the start."""
    words = [word for word in phrase.replace("-", " ").split() if word[0].isalpha()]
    kept = [word for place, word in enumerate(words) if place == 0 or word.lower() not in SMALL_WORDS]
    initials = [word[0].upper() for word in kept]
    return ".".join(initials) + "." if dotted and initials else "".join(initials)
