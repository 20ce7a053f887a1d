ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def encode(text: str) -> str:
    """Return the UTF-8 bytes of a text in base 32, padded with `=` to a multiple of eight letters."""
    out, buffer, bits = "", 0, 0
    for byte in text.encode():
        buffer, bits = (buffer << 8) | byte, bits + 8
        while bits >= 5:
            bits -= 5
            out += ALPHABET[(buffer >> bits) & 31]
    if bits:
        out += ALPHABET[(buffer << (5 - bits)) & 31]
    return out + "=" * (-len(out) % 8)


def decode(text: str) -> str | None:
    out, buffer, bits = "", 0, 0
    for letter in text.rstrip("="):
        value = ALPHABET.find(letter.upper())
        if value < 0:
            return None
        buffer, bits = (buffer << 5) | value, bits + 5
        if bits >= 8:
            bits -= 8
            out += f"{buffer >> bits & 255:02x}"
    return bytes.fromhex(out).decode()


def base32_text(texts: list[str], back: bool = False) -> list[str | None]:
    """Encode texts in base 32, or decode them; None for a text that is not base 32."""
    return [decode(text) if back else encode(text) for text in texts]
