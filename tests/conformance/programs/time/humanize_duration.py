UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def humanize_duration(seconds: float, parts: int = 2) -> str:
    """Format a duration with at most `parts` units, truncated; a negative one is in the past."""
    left = int(abs(seconds))
    words: list[str] = []
    for unit, length in UNITS:
        count, left = divmod(left, length)
        if count and len(words) < parts:
            words.append(f"{count} {unit}{'s' if count != 1 else ''}")
    if not words:
        return "now"
    text = " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
    return f"{text} ago" if seconds < 0 else f"in {text}"
