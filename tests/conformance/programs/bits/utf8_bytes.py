def utf8_bytes(text: str) -> list[str]:
    """Return the UTF-8 bytes of each character of a text as hex, computed from its code point."""
    found: list[str] = []
    for letter in text:
        point = ord(letter)
        if point < 0x80:
            units = [point]
        elif point < 0x800:
            units = [0xC0 | point >> 6, 0x80 | point & 0x3F]
        elif point < 0x10000:
            units = [0xE0 | point >> 12, 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F]
        else:
            units = [0xF0 | point >> 18, *(0x80 | point >> shift & 0x3F for shift in (12, 6, 0))]
        found.append(" ".join(f"{unit:02x}" for unit in units))
    return found
