interface Draws {
  count: number;
  first: Record<string, string>;
}

/** Return the number of gift draws, and the first; people give neither to themselves nor to a partner. */
function giftDraws(people: string[], couples: [string, string][]): Draws {
  const barred = new Set<string>(couples.flatMap(([a, b]) => [`${a}>${b}`, `${b}>${a}`]));
  const givers = [...people].sort();
  const taken = new Set<string>();
  const drawn: string[] = [];
  let first: string[] | undefined;

  const draw = (): number => {
    if (drawn.length === givers.length) {
      first ??= [...drawn];
      return 1;
    }
    const giver = givers[drawn.length];
    let found = 0;
    for (const taker of givers) {
      if (taker === giver || taken.has(taker) || barred.has(`${giver}>${taker}`)) continue;
      taken.add(taker);
      drawn.push(taker);
      found += draw();
      drawn.pop();
      taken.delete(taker);
    }
    return found;
  };

  const count = draw();
  return { count, first: Object.fromEntries((first ?? []).map((taker, place) => [givers[place], taker])) };
}
