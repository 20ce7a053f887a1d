type Relation = "equal" | "within" | "around" | "apart" | "overlapping";

interface Comparison {
  relation: Relation;
  both: string[];
  either: string[];
  likeness: number;
}

const fold = (tags: string[]): Set<string> => new Set(tags.map((tag) => tag.toUpperCase().toLowerCase()));
const without = <T>(from: Set<T>, what: Set<T>): T[] => [...from].filter((item) => !what.has(item));

/** Return how two sets of tags relate, and how similar they are, ignoring case. */
function compareTags(mine: string[], theirs: string[]): Comparison {
  const [a, b] = [fold(mine), fold(theirs)];
  const both = [...a].filter((tag) => b.has(tag)).sort();
  const [onlyA, onlyB] = [without(a, b), without(b, a)];
  const relation: Relation =
    !onlyA.length && !onlyB.length ? "equal"
    : !onlyA.length ? "within"
    : !onlyB.length ? "around"
    : !both.length ? "apart"
    : "overlapping";
  const all = both.length + onlyA.length + onlyB.length;
  return { relation, both, either: [...onlyA, ...onlyB].sort(), likeness: all ? both.length / all : 1 };
}
