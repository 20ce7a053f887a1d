import re
import unicodedata


def slug(title: str, taken: list[str], limit: int = 24) -> str:
    """Convert a title to letters, digits and dashes for a URL; append a number if it is already taken."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", title) if not unicodedata.combining(c))
    words = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    base = words[:limit].rstrip("-") or "untitled"
    found, number = base, 1
    while found in taken:
        number += 1
        found = f"{base}-{number}"
    return found
