def doubled(n: int) -> tuple[int, int]:
    """Return the nth Fibonacci number and the next one."""
    if n == 0:
        return 0, 1
    a, b = doubled(n >> 1)
    c = a * (2 * b - a)
    d = a * a + b * b
    return (d, c + d) if n & 1 else (c, d)


def fibonacci_digits(n: int) -> dict[str, int | str]:
    """Return the length of the nth Fibonacci number, its first and last digits, and the sum of its digits."""
    digits = str(doubled(n)[0])
    return {"count": len(digits), "head": digits[:6], "tail": digits[-6:], "sum": sum(map(int, digits))}
