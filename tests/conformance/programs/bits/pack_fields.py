def pack_fields(layout: list[list[str | int]], values: dict[str, int]) -> dict[str, object]:
    """Pack numbers into one word, the first field in the highest bits, and unpack them again."""
    word = 0
    for name, width in layout:
        value, mask = values.get(str(name), 0), (1 << int(width)) - 1
        if value & ~mask:
            return {"error": f"{name} does not fit in {width} bits"}
        word = word << int(width) | value
    back: dict[str, int] = {}
    rest = word
    for name, width in reversed(layout):
        back[str(name)] = rest & ((1 << int(width)) - 1)
        rest >>= int(width)
    return {
        "word": f"{word:#x}",
        "ones": bin(word).count("1"),
        "same": all(back[n] == v for n, v in values.items()),
    }
