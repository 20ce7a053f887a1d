type Counts = Map<string, number>;

/** Return the documents that contain each word, those that contain it most often first. */
function invertedIndex(documents: Record<string, string>, ignored: string[]): Record<string, string[]> {
  const counts = new Map<string, Counts>();
  for (const [title, text] of Object.entries(documents)) {
    for (const [word] of text.toLowerCase().matchAll(/[\p{L}\p{N}_]+/gu)) {
      if (ignored.includes(word)) continue;
      if (!counts.has(word)) counts.set(word, new Map());
      const found = counts.get(word)!;
      found.set(title, (found.get(title) ?? 0) + 1);
    }
  }
  const index: Record<string, string[]> = {};
  for (const word of [...counts.keys()].sort()) {
    const found: Counts = counts.get(word)!;
    index[word] = [...found.keys()].sort((a, b) => found.get(b)! - found.get(a)! || (a < b ? -1 : 1));
  }
  return index;
}
