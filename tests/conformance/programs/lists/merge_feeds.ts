class Feed {
  private place = 0;

  constructor(public readonly name: string, private readonly times: readonly number[]) {}

  get next(): number | undefined {
    return this.times[this.place];
  }

  take(): string {
    return `${this.name}@${this.times[this.place++]}`;
  }
}

/** Merge the oldest posts of several sorted feeds into one list; ties are resolved by the feed's name. */
function mergeFeeds(feeds: { [name: string]: number[] }, limit: number): string[] {
  const open = Object.keys(feeds).sort().map((name) => new Feed(name, feeds[name]));
  const merged: string[] = [];
  while (merged.length < limit) {
    let oldest: Feed | undefined;
    for (const feed of open) {
      if (feed.next !== undefined && (oldest === undefined || feed.next < oldest.next!)) oldest = feed;
    }
    if (!oldest) break;
    merged.push(oldest.take());
  }
  return merged;
}
