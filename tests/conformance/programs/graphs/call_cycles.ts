type CallGraph = Readonly<Record<string, readonly string[]>>;

/** Return the groups of functions that call each other in a cycle, sorted, including direct recursion. */
function callCycles(calls: CallGraph): string[][] {
  const reach = (from: string): Set<string> => {
    const seen = new Set<string>();
    const todo: string[] = [...(calls[from] ?? [])];
    while (todo.length > 0) {
      const name = todo.pop()!;
      if (seen.has(name)) continue;
      seen.add(name);
      todo.push(...(calls[name] ?? []));
    }
    return seen;
  };
  const reachable = new Map(Object.keys(calls).map((name) => [name, reach(name)] as const));
  const groups: string[][] = [];
  const grouped = new Set<string>();
  for (const name of [...reachable.keys()].sort()) {
    if (grouped.has(name) || !reachable.get(name)!.has(name)) continue;
    const group = [...reachable.get(name)!].filter((other) => reachable.get(other)?.has(name)).sort();
    group.forEach((other) => grouped.add(other));
    groups.push(group);
  }
  return groups;
}
