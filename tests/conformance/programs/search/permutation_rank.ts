function factorial(n: number): bigint {
  return n < 2 ? 1n : BigInt(n) * factorial(n - 1);
}

/** Return the number of distinct orders of the letters. */
function arrangements(counts: Map<string, number>): bigint {
  const all = [...counts.values()];
  const total = factorial(all.reduce((a, b) => a + b, 0));
  return all.reduce((left, count) => left / factorial(count), total);
}

/** Return the rank of a word among the sorted distinct arrangements of its letters, from 1, as text. */
function permutationRank(word: string): string {
  const left = new Map<string, number>();
  for (const letter of word) left.set(letter, (left.get(letter) ?? 0) + 1);
  const add = (letter: string, by: 1 | -1): void => void left.set(letter, left.get(letter)! + by);
  let rank = 1n;
  for (const letter of word) {
    for (const [other, count] of [...left]) {
      if (other >= letter || count === 0) continue;
      add(other, -1);
      rank += arrangements(left);
      add(other, +1);
    }
    add(letter, -1);
  }
  return rank.toString();
}
