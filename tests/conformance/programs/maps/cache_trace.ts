type Step = ["get", string] | ["put", string, number];

class RecencyCache<K, V> {
  private readonly values = new Map<K, V>();

  constructor(private readonly capacity: number) {}

  get(key: K): V | undefined {
    const value = this.values.get(key);
    if (value !== undefined) {
      this.values.delete(key);
      this.values.set(key, value);
    }
    return value;
  }

  /** Store a value; return the key that was evicted for it, if any. */
  put(key: K, value: V): K | undefined {
    this.values.delete(key);
    this.values.set(key, value);
    if (this.values.size <= this.capacity) return undefined;
    const oldest = this.values.keys().next().value as K;
    this.values.delete(oldest);
    return oldest;
  }

  get keys(): K[] {
    return [...this.values.keys()];
  }
}

/** Return the results of gets, the keys evicted by puts, and the remaining keys, oldest first. */
function cacheTrace(capacity: number, steps: Step[]) {
  const cache = new RecencyCache<string, number>(capacity);
  const answers: (number | null)[] = [];
  const evicted: string[] = [];
  for (const step of steps) {
    if (step[0] === "get") {
      answers.push(cache.get(step[1]) ?? null);
    } else {
      const [, key, value] = step;
      const gone = cache.put(key, value);
      if (gone !== undefined) evicted.push(gone);
    }
  }
  return { answers, evicted, left: cache.keys };
}
