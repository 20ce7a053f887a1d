class Circles {
  readonly parent: { [name: string]: string } = {};

  find(name: string): string {
    const parent = (this.parent[name] ??= name);
    return parent === name ? name : (this.parent[name] = this.find(parent));
  }

  join(one: string, other: string): boolean {
    const [a, b] = [this.find(one), this.find(other)];
    if (a !== b) this.parent[b] = a;
    return a !== b;
  }
}

/** Return the groups of people who know each other through others, and the meetings that joined none. */
function friendCircles(meetings: ReadonlyArray<readonly [string, string]>): { circles: string[][]; idle: number[] } {
  const circles = new Circles();
  const idle: number[] = [];
  meetings.forEach(([one, other], place) => {
    if (!circles.join(one, other)) idle.push(place);
  });
  const groups = new Map<string, string[]>();
  for (const name of Object.keys(circles.parent).sort()) {
    const root = circles.find(name);
    groups.set(root, [...(groups.get(root) ?? []), name]);
  }
  const ordered = [...groups.values()].sort((a, b) => b.length - a.length || (a[0] < b[0] ? -1 : 1));
  return { circles: ordered, idle };
}
