interface Summary {
  readonly mean: number;
  readonly median: number;
  readonly modes: readonly number[];
  readonly spread: number;
  readonly outliers: readonly number[];
}

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);

function modesOf(values: readonly number[]): number[] {
  const counts = new Map<number, number>();
  values.forEach((value) => counts.set(value, (counts.get(value) || 0) + 1));
  const most = Math.max(...counts.values());
  return Array.from(counts.keys()).filter((value) => counts.get(value) === most).sort((a, b) => a - b);
}

/** Return mean, median, modes and standard deviation of scores, and those two deviations from the mean. */
function scoreSummary(scores: readonly number[]): Summary | null {
  if (scores.length === 0) return null;
  const mean = sum(scores) / scores.length;
  const sorted = [...scores].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  const spread = Math.sqrt(sum(scores.map((score) => (score - mean) ** 2)) / scores.length);
  const outliers = scores.filter((score) => spread > 0 && Math.abs(score - mean) >= 2 * spread);
  return { mean, median, modes: modesOf(scores), spread, outliers };
}
