/** Yield all primes, from a sieve that grows on demand. */
function* primes(): Generator<number, never, void> {
  const composites = new Map<number, number[]>();
  for (let number = 2; ; number++) {
    const factors = composites.get(number);
    if (factors === undefined) {
      yield number;
      composites.set(number * number, [number]);
      continue;
    }
    composites.delete(number);
    for (const factor of factors) {
      const next = number + factor;
      composites.set(next, [...(composites.get(next) ?? []), factor]);
    }
  }
}

class Gaps implements Iterable<[gap: number, from: number]> {
  constructor(private readonly limit: number) {}

  *[Symbol.iterator](): IterableIterator<[number, number]> {
    let low = Infinity;
    let widest = 0;
    for (const high of primes()) {
      if (high >= this.limit) return;
      if (high - low > widest) yield [(widest = high - low), low];
      low = high;
    }
  }
}

/** Return the first record gaps between primes below a limit. */
function primeGaps(limit: number, most = 100): [number, number][] {
  const found: [number, number][] = [];
  for (const gap of new Gaps(limit)) {
    if (found.length === most) break;
    found.push(gap);
  }
  return found;
}
