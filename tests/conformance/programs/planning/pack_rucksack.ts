interface Item {
  readonly name: string;
  readonly weight: number;
  readonly worth: number;
}

interface Pack {
  worth: number;
  weight: number;
  names: string[];
}

/** Return the most valuable selection that fits; of equal ones the lightest, then the first by name. */
function packRucksack(things: Item[], capacity: number): Pack {
  const items = things.slice().sort((a, b) => (a.name < b.name ? -1 : 1));
  const memo: Record<string, Pack> = Object.create(null);
  function best(place: number, left: number): Pack {
    if (place === items.length) return { worth: 0, weight: 0, names: [] };
    return (memo[`${place}/${left}`] ??= choose(items[place], place, left));
  }
  function choose({ name, weight, worth }: Item, place: number, left: number): Pack {
    const without = best(place + 1, left);
    if (weight > left) return without;
    const rest = best(place + 1, left - weight);
    const taken: Pack = { worth: rest.worth + worth, weight: rest.weight + weight, names: [name, ...rest.names] };
    const better = taken.worth - without.worth || without.weight - taken.weight;
    return better >= 0 ? taken : without;
  }
  return best(0, capacity);
}
