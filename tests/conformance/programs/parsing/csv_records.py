def csv_records(text: str, separator: str = ",") -> list[dict[str, str]]:
    """Return the records of a CSV text by the names in its header; quotes are doubled in quoted fields."""
    rows: list[list[str]] = [[""]]
    state = "start"
    for letter in text.replace("\r\n", "\n"):
        row = rows[-1]
        if state == "quoted":
            if letter == '"':
                state = "quote"
            else:
                row[-1] += letter
        elif letter == '"' and state in ("start", "quote"):
            row[-1] += letter if state == "quote" else ""
            state = "quoted"
        elif letter == separator:
            row.append("")
            state = "start"
        elif letter == "\n":
            rows.append([""])
            state = "start"
        else:
            row[-1] += letter
            state = "plain"
    names, *records = [row for row in rows if row != [""]] or [[]]
    return [dict(zip(names, record, strict=False)) for record in records]
