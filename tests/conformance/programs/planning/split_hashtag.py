from functools import cache


def split_hashtag(tag: str, words: list[str]) -> list[str]:
    """Return every way to split a hashtag into known words, those with the fewest words first."""
    known = {word.lower() for word in words if word}
    text = tag.removeprefix("#").lower()

    @cache
    def readings(start: int) -> tuple[tuple[str, ...], ...]:
        if start == len(text):
            return ((),)
        found: list[tuple[str, ...]] = []
        for end in range(start + 1, len(text) + 1):
            if (word := text[start:end]) in known:
                found.extend((word, *rest) for rest in readings(end))
        return tuple(found)

    return [" ".join(reading) for reading in sorted(readings(0), key=lambda reading: (len(reading), reading))]
