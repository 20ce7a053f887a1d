type Affixes = [prefix: string, suffix: string];

/** Return how many leading elements all lists share. */
function sharedLength<T>(lists: readonly (readonly T[])[]): number {
  const shortest = Math.min(...lists.map((list) => list.length));
  for (let place = 0; place < shortest; place++) {
    if (lists.some((list) => list[place] !== lists[0][place])) return place;
  }
  return shortest;
}

/** Return the longest prefix and suffix that all words share, without overlap in any of them. */
function commonAffixes(words: string[]): Affixes {
  if (!words.length) return ["", ""];
  const letters = words.map((word) => [...word]);
  const head = sharedLength(letters);
  const tails = letters.map((word) => word.slice(head).reverse());
  const tail = sharedLength(tails);
  return [letters[0].slice(0, head).join(""), tails[0].slice(0, tail).reverse().join("")];
}
