def wrap_paragraph(text: str, width: int) -> list[str]:
    """Fill lines of at most `width` characters; a word longer than a line is split with a hyphen."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        rest = word
        while True:
            gap = 1 if line else 0
            if len(line) + gap + len(rest) <= width:
                line += " " * gap + rest
                break
            if len(rest) > width and not line:
                lines.append(rest[: width - 1] + "-")
                rest = rest[width - 1 :]
            else:
                lines.append(line)
                line = ""
    if line:
        lines.append(line)
    return lines
