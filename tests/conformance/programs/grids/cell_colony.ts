const steps = [-1, 0, 1] as const;
const around = steps.flatMap((dx) => steps.map((dy) => [dx, dy] as const)).filter(([dx, dy]) => dx !== 0 || dy !== 0);

class Colony {
  private constructor(private readonly alive: ReadonlySet<string>) {}

  static read(picture: string[]): Colony {
    const alive = picture.flatMap((row, y) => [...row].flatMap((mark, x) => (mark === "#" ? [`${x},${y}`] : [])));
    return new Colony(new Set(alive));
  }

  next(): Colony {
    const counts: Record<string, number> = {};
    for (const [x, y] of this.places()) {
      for (const [dx, dy] of around) {
        const key = `${x + dx},${y + dy}`;
        counts[key] = (counts[key] ?? 0) + 1;
      }
    }
    const lives = (key: string): boolean => counts[key] === 3 || (counts[key] === 2 && this.alive.has(key));
    return new Colony(new Set(Object.keys(counts).filter(lives)));
  }

  draw(): string[] {
    if (this.alive.size === 0) return [];
    const places = this.places();
    const [xs, ys] = [places.map(([x]) => x), places.map(([, y]) => y)];
    const lines: string[] = [];
    for (let y = Math.min(...ys); y <= Math.max(...ys); y++) {
      let line = "";
      for (let x = Math.min(...xs); x <= Math.max(...xs); x++) line += this.alive.has(`${x},${y}`) ? "#" : ".";
      lines.push(line);
    }
    return lines;
  }

  private places(): [number, number][] {
    return [...this.alive].map((key) => key.split(",").map(Number) as [number, number]);
  }
}

/** Return a colony after `generations` steps (born with 3 neighbours, alive with 2 or 3), cropped. */
function cellColony(picture: string[], generations: number): string[] {
  let colony = Colony.read(picture);
  for (let left = generations; left > 0; left--) colony = colony.next();
  return colony.draw();
}
