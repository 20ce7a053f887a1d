DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def convert_base(text: str, source: int, target: int) -> str | None:
    """Convert an integer of any size from one base to another; None if it has an invalid digit."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    value = 0
    for letter in digits.lower():
        digit = DIGITS.find(letter)
        if digit < 0 or digit >= source:
            return None
        value = value * source + digit
    if not digits:
        return None
    out: list[str] = []
    while value:
        value, digit = divmod(value, target)
        out.append(DIGITS[digit])
    return sign + "".join(reversed(out)) if out else "0"
