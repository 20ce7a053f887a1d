def convergents(numerator: int, denominator: int) -> list[str]:
    """Return the convergents of a fraction's continued fraction, the fraction itself last."""
    found: list[str] = []
    p0, p1, q0, q1 = 0, 1, 1, 0
    a, b = numerator, denominator
    while b:
        whole, rest = divmod(a, b)
        p0, p1 = p1, whole * p1 + p0
        q0, q1 = q1, whole * q1 + q0
        found.append(f"{p1}/{q1}")
        a, b = b, rest
    return found
