/** Split items into consecutive groups within the budget; an item that exceeds it has its own group. */
function splitWhen<T>(items: readonly T[], cost: (item: T) => number, budget: number): T[][] {
  let left = 0;
  return items.reduce<T[][]>((groups, item) => {
    const price = cost(item);
    const last = groups.at(-1);
    if (last && price <= left) {
      last.push(item);
      left -= price;
    } else {
      groups.push([item]);
      left = budget - price;
    }
    return groups;
  }, []);
}

/** Split messages into batches of at most `budget` bytes of UTF-8. */
function budgetChunks(messages: string[], budget: number): string[][] {
  const encoder = new TextEncoder();
  return splitWhen(messages, (message) => encoder.encode(message).length, budget);
}
