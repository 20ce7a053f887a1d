interface Route {
  cost: number;
  path: string[];
}

class PriorityQueue<T> {
  private items: T[] = [];

  constructor(private readonly before: (a: T, b: T) => boolean) {}

  push(item: T): void {
    let place = this.items.push(item) - 1;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      if (!this.before(this.items[place], this.items[parent])) break;
      [this.items[place], this.items[parent]] = [this.items[parent], this.items[place]];
      place = parent;
    }
  }

  pop(): T | undefined {
    const top = this.items[0];
    const last = this.items.pop();
    if (this.items.length && last !== undefined) {
      this.items[0] = last;
      this.sink(0);
    }
    return top;
  }

  private sink(place: number): void {
    for (;;) {
      let least = place;
      for (const child of [2 * place + 1, 2 * place + 2]) {
        if (child < this.items.length && this.before(this.items[child], this.items[least])) least = child;
      }
      if (least === place) return;
      [this.items[place], this.items[least]] = [this.items[least], this.items[place]];
      place = least;
    }
  }
}

/** Return the cheapest route along two-way roads and its cost; of equal ones, the first by name. */
function cheapestRoute(roads: [from: string, to: string, cost: number][], start: string, goal: string): Route | null {
  const queue = new PriorityQueue<Route>(
    (a, b) => a.cost < b.cost || (a.cost === b.cost && a.path.join("\0") < b.path.join("\0")),
  );
  const settled = new Set<string>();
  queue.push({ cost: 0, path: [start] });
  let route: Route | undefined;
  while ((route = queue.pop())) {
    const place = route.path[route.path.length - 1];
    if (place === goal) return route;
    if (settled.has(place)) continue;
    settled.add(place);
    for (const [a, b, cost] of roads) {
      for (const [here, there] of [[a, b], [b, a]]) {
        if (here !== place || settled.has(there)) continue;
        queue.push({ cost: route.cost + cost, path: [...route.path, there] });
      }
    }
  }
  return null;
}
