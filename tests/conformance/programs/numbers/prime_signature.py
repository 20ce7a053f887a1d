def prime_signature(number: int) -> str:
    """Return an integer as a product of prime powers, largest exponent first, then the smaller prime."""
    if number < 2:
        return str(number)
    powers: dict[int, int] = {}
    rest, factor = number, 2
    while factor * factor <= rest:
        while rest % factor == 0:
            powers[factor] = powers.get(factor, 0) + 1
            rest //= factor
        factor += 1 if factor == 2 else 2
    if rest > 1:
        powers[rest] = powers.get(rest, 0) + 1
    ordered = sorted(powers.items(), key=lambda item: (-item[1], item[0]))
    return " · ".join(f"{prime}^{power}" if power > 1 else f"{prime}" for prime, power in ordered)
