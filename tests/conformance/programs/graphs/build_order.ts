type Plan = { order: string[] } | { cycle: string[] };

const least = (names: Iterable<string>): string => [...names].reduce((a, b) => (a < b ? a : b));

/** Order steps so that each follows what it needs, by name where possible; or return a cycle. */
function buildOrder(needs: Record<string, string[]>): Plan {
  const waiting = new Map<string, string[]>(Object.entries(needs));
  for (const other of Object.values(needs).flat()) if (!waiting.has(other)) waiting.set(other, []);
  const done = new Set<string>();
  while (true) {
    const ready = [...waiting].filter(([, others]) => others.every((other) => done.has(other)));
    if (ready.length === 0) break;
    const next = least(ready.map(([name]) => name));
    done.add(next);
    waiting.delete(next);
  }
  if (waiting.size === 0) return { order: [...done] };
  const walk: string[] = [least(waiting.keys())];
  for (;;) {
    const next = least(waiting.get(walk[walk.length - 1])!.filter((other) => waiting.has(other)));
    const seen = walk.indexOf(next);
    walk.push(next);
    if (seen >= 0) return { cycle: walk.slice(seen) };
  }
}
