import re

LENGTHS = {"BE": 16, "CH": 21, "DE": 22, "FR": 27, "GB": 22, "NO": 15}


def iban_check(text: str) -> dict[str, str | bool]:
    """Check the form and the check digits of an account number; if it is valid, show it in groups of four."""
    number = re.sub(r"\s+", "", text).upper()
    if not re.fullmatch(r"[A-Z]{2}[0-9]{2}[A-Z0-9]+", number):
        return {"valid": False, "reason": "form"}
    if LENGTHS.get(number[:2]) != len(number):
        return {"valid": False, "reason": "length" if number[:2] in LENGTHS else "country"}
    digits = "".join(str(int(letter, 36)) for letter in number[4:] + number[:4])
    if int(digits) % 97 != 1:
        return {"valid": False, "reason": "checksum"}
    return {"valid": True, "shown": " ".join(number[i : i + 4] for i in range(0, len(number), 4))}
