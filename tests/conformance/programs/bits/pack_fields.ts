type Layout = ReadonlyArray<readonly [name: string, width: number]>;
type Packed = { word: string; ones: number; same: boolean } | { error: string };

const maskOf = (width: number): bigint => (1n << BigInt(width)) - 1n;

/** Pack numbers into one word, the first field in the highest bits, and unpack them again. */
function packFields(layout: Layout, values: Readonly<Record<string, number>>): Packed {
  let word = 0n;
  for (const [name, width] of layout) {
    const value = BigInt(values[name] ?? 0);
    if ((value & ~maskOf(width)) !== 0n) return { error: `${name} does not fit in ${width} bits` };
    word = (word << BigInt(width)) | value;
  }
  const back: Record<string, bigint> = {};
  layout.reduceRight((rest, [name, width]) => {
    back[name] = BigInt.asUintN(width, rest);
    return rest >> BigInt(width);
  }, word);
  const ones = word.toString(2).split("1").length - 1;
  const same = Object.entries(values).every(([name, value]) => back[name] === BigInt(value));
  return { word: "0x" + word.toString(16), ones, same };
}
