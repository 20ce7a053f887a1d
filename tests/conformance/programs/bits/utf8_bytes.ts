/** Return the UTF-8 bytes of each character of a text as hex, computed from its code point. */
function utf8Bytes(text: string): string[] {
  const limits: readonly [limit: number, lead: number][] = [
    [0x80, 0x00],
    [0x800, 0xc0],
    [0x10000, 0xe0],
    [0x110000, 0xf0],
  ];
  return Array.from(text, (letter) => {
    const point = letter.codePointAt(0)!;
    const tails = limits.findIndex(([limit]) => point < limit);
    const units = [limits[tails][1] | (point >> (6 * tails))];
    for (let tail = tails - 1; tail >= 0; tail--) units.push(0x80 | ((point >> (6 * tail)) & 0x3f));
    return units.map((unit) => unit.toString(16).padStart(2, "0")).join(" ");
  });
}
