/** Return the number of ways in which stamps make an amount, regardless of order and by order, as text. */
function postageWays(amount: number, stamps: number[]): { unordered: string; ordered: string } {
  const kinds = [...new Set(stamps)].filter((stamp) => stamp > 0);
  const unordered = new Array<bigint>(amount + 1).fill(0n);
  unordered[0] = 1n;
  kinds.forEach((stamp) => {
    for (let total = stamp; total <= amount; total++) unordered[total] += unordered[total - stamp];
  });
  const ordered: bigint[] = [1n];
  for (let total = 1; total <= amount; total++) {
    ordered[total] = kinds.reduce((sum, stamp) => sum + (ordered[total - stamp] ?? 0n), 0n);
  }
  return { unordered: `${unordered[amount]}`, ordered: `${ordered[amount]}` };
}
