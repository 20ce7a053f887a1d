/** Return every way to split a hashtag into known words, those with the fewest words first. */
function splitHashtag(tag: string, words: string[]): string[] {
  const known = new Set(words.filter((word) => word !== "").map((word) => word.toLowerCase()));
  const text = tag.replace(/^#/, "").toLowerCase();
  const memo = new Map<number, string[][]>([[text.length, [[]]]]);

  const readings = (start: number): string[][] => {
    const ready = memo.get(start);
    if (ready) return ready;
    const found: string[][] = [];
    for (const word of known) {
      if (!text.startsWith(word, start)) continue;
      for (const rest of readings(start + word.length)) found.push([word, ...rest]);
    }
    memo.set(start, found);
    return found;
  };

  const before = (a: string, b: string): number => (a < b ? -1 : Number(a > b));
  return readings(0)
    .sort((a, b) => a.length - b.length || before(a.join("\0"), b.join("\0")))
    .map((reading) => reading.join(" "));
}
