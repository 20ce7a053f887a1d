type Fraction = Readonly<{ p: number; q: number }>;

/** Return the convergents of a fraction's continued fraction, the fraction itself last. */
function convergents(numerator: number, denominator: number): string[] {
  const step = (a: number, b: number, before: Fraction, now: Fraction): Fraction[] => {
    if (b === 0) return [];
    const whole = Math.floor(a / b);
    const next: Fraction = { p: whole * now.p + before.p, q: whole * now.q + before.q };
    return [next, ...step(b, a - whole * b, now, next)];
  };
  return step(numerator, denominator, { p: 0, q: 1 }, { p: 1, q: 0 }).map(({ p, q }) => `${p}/${q}`);
}
