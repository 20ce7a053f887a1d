/** Return an integer as a product of prime powers, largest exponent first, then the smaller prime. */
function primeSignature(number: number): string {
  if (number < 2) return String(number);
  const powers = new Map<number, number>();
  const count = (prime: number) => powers.set(prime, (powers.get(prime) ?? 0) + 1);
  let rest = number;
  for (let factor = 2; factor * factor <= rest; factor += factor === 2 ? 1 : 2) {
    for (; rest % factor === 0; rest /= factor) count(factor);
  }
  if (rest > 1) count(rest);
  return [...powers]
    .sort(([p, a], [q, b]) => b - a || p - q)
    .map(([prime, power]) => (power > 1 ? `${prime}^${power}` : `${prime}`))
    .join(" · ");
}
