enum Side {
  Left,
  Right,
}

/** Split people into two teams without rivals in the same team; null if that is impossible. */
function rivalTeams(rivals: [string, string][]): [string[], string[]] | null {
  const against = new Map<string, Set<string>>();
  const know = (one: string, other: string) => (against.get(one) ?? against.set(one, new Set()).get(one)!).add(other);
  for (const [one, other] of rivals) {
    know(one, other);
    know(other, one);
  }
  const team = new Map<string, Side>();
  const place = (name: string, side: Side): boolean => {
    if (team.has(name)) return team.get(name) === side;
    team.set(name, side);
    const otherSide = side === Side.Left ? Side.Right : Side.Left;
    return Array.from(against.get(name)!).every((other) => place(other, otherSide));
  };
  const names = [...against.keys()].sort();
  if (!names.every((name) => team.has(name) || place(name, Side.Left))) return null;
  return [names.filter((name) => team.get(name) === Side.Left), names.filter((name) => team.get(name) === Side.Right)];
}
