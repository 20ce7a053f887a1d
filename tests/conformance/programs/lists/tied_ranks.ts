type Method = "min" | "average" | "dense";
type Ranker = (score: number, ordered: number[]) => number;

const rankers: Record<Method, Ranker> = {
  min: (score, ordered) => ordered.indexOf(score) + 1,
  average: (score, ordered) => (ordered.indexOf(score) + ordered.lastIndexOf(score)) / 2 + 1,
  dense: (score, ordered) => [...new Set(ordered)].indexOf(score) + 1,
};

/** Rank scores from the highest down; ties get the best place or the average, or leave no gap. */
function tiedRanks(scores: Record<string, number>, method: Method): Record<string, number> {
  const ordered = Object.values(scores).sort((a, b) => b - a);
  const ranked = Object.entries(scores).map(([name, score]) => [name, rankers[method](score, ordered)] as const);
  return Object.fromEntries(ranked);
}
