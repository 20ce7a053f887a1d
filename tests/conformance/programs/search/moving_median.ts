/** Return where a value belongs in a sorted list, before equal ones. */
function placeOf(sorted: readonly number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the median of the last `window` values at each position, null where there are fewer. */
function movingMedian(values: number[], window: number): Array<number | null> {
  if (window < 1) throw new RangeError("a window has at least one value");
  const ordered: number[] = [];
  return values.map((value, place) => {
    ordered.splice(placeOf(ordered, value), 0, value);
    if (place >= window) ordered.splice(placeOf(ordered, values[place - window]), 1);
    if (place < window - 1) return null;
    return (ordered[(window - 1) >> 1] + ordered[window >> 1]) / 2;
  });
}
