interface Link {
  value: number;
  before: Link | null;
}

/** Return the longest strictly increasing subsequence; of several, the one with the lowest ends. */
function risingStreak(values: number[]): number[] {
  const tails: Link[] = [];
  for (const value of values) {
    let length = tails.findIndex((link) => link.value >= value);
    if (length < 0) length = tails.length;
    tails[length] = { value, before: tails[length - 1] ?? null };
  }
  const streak: number[] = [];
  for (let link: Link | null = tails.at(-1) ?? null; link; link = link.before) streak.unshift(link.value);
  return streak;
}
