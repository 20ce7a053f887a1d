interface DigitReport {
  count: number;
  head: string;
  tail: string;
  sum: number;
}

/** Return the nth Fibonacci number and the next one. */
function doubled(n: number): [bigint, bigint] {
  if (n === 0) return [0n, 1n];
  const [a, b] = doubled(n >> 1);
  const c = a * (2n * b - a);
  const d = a ** 2n + b ** 2n;
  return n & 1 ? [d, c + d] : [c, d];
}

/** Return the length of the nth Fibonacci number, its first and last digits, and the sum of its digits. */
function fibonacciDigits(n: number): DigitReport {
  const digits = doubled(n)[0].toString();
  const sum = [...digits].reduce((total, digit) => total + Number(digit), 0);
  return { count: digits.length, head: digits.slice(0, 6), tail: digits.slice(-6), sum };
}
