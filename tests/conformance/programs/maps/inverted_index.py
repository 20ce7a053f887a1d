import re
from collections import defaultdict


def inverted_index(documents: dict[str, str], ignored: list[str]) -> dict[str, list[str]]:
    """Return the documents that contain each word, those that contain it most often first."""
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    skip = set(ignored)
    for title, text in documents.items():
        for word in re.findall(r"\w+", text.lower()):
            if word not in skip:
                counts[word][title] = counts[word].get(title, 0) + 1
    return {
        word: sorted(found, key=lambda title: (-found[title], title))
        for word, found in sorted(counts.items())
    }
