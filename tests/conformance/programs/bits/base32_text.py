ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def encode(text: str) -> str:
    """The UTF-8 bytes of a text, five bits to a letter, filled up to eights with `=`."""
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
    """Texts in base 32, or back from it; None for what is not base 32."""
    return [decode(text) if back else encode(text) for text in texts]
