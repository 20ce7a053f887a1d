def percent_decode(text: str) -> str:
    """Decode percent escapes as UTF-8; invalid escapes stay unchanged."""
    out = ""
    place = 0
    while place < len(text):
        digits = text[place + 1 : place + 3]
        if (
            text[place] == "%"
            and len(digits) == 2
            and all(digit in "0123456789abcdefABCDEF" for digit in digits)
        ):
            out += digits
            place += 3
        else:
            out += (" " if text[place] == "+" else text[place]).encode().hex()
            place += 1
    return bytes.fromhex(out).decode()


def query_string(query: str) -> dict[str, str | list[str]]:
    """Return the fields of a query; a name that is repeated, or ends in `[]`, has a list."""
    fields: dict[str, str | list[str]] = {}
    for pair in query.removeprefix("?").split("&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition("=")
        name, value = percent_decode(raw_name), percent_decode(raw_value)
        many = name.endswith("[]")
        name = name.removesuffix("[]")
        old = fields.get(name)
        if isinstance(old, list):
            old.append(value)
        elif old is not None:
            fields[name] = [old, value]
        else:
            fields[name] = [value] if many else value
    return fields
