/** Return the sizes of lakes (`~`) surrounded by land, largest first; water at the edge is the sea. */
function lakeSizes(land: string[]): number[] {
  const grid = land.map((row) => Array.from(row));
  const SEA = Number.NEGATIVE_INFINITY;
  const flood = (x: number, y: number): number => {
    const mark = grid[y]?.[x];
    if (mark === undefined) return SEA;
    if (mark !== "~") return 0;
    grid[y][x] = ".";
    return 1 + flood(x + 1, y) + flood(x - 1, y) + flood(x, y + 1) + flood(x, y - 1);
  };
  const sizes: number[] = [];
  grid.forEach((row, y) => row.forEach((_, x) => sizes.push(flood(x, y))));
  return sizes.filter((size) => size > 0).sort((a, b) => b - a);
}
