type Part = { kind: "number"; value: bigint; text: string } | { kind: "text"; text: string };

function partsOf(name: string): Part[] {
  const found = name.match(/[0-9]+|[^0-9]+/g) ?? [];
  return found.map((text): Part =>
    /^[0-9]/.test(text) ? { kind: "number", value: BigInt(text), text } : { kind: "text", text: text.toLowerCase() },
  );
}

const compare = <T extends string | bigint>(a: T, b: T): number => (a < b ? -1 : a > b ? 1 : 0);

function compareParts(a: Part, b: Part): number {
  if (a.kind === "number" && b.kind === "number") return compare(a.value, b.value) || compare(a.text, b.text);
  if (a.kind === "text" && b.kind === "text") return compare(a.text, b.text);
  return a.kind === "number" ? -1 : 1;
}

/** Sort names as people expect: `img9` comes before `img10`. */
function naturalOrder(names: string[], newestFirst = false): string[] {
  const keyed = names.map((name) => ({ name, parts: partsOf(name) }));
  keyed.sort((a, b) => {
    const shared = Math.min(a.parts.length, b.parts.length);
    for (let i = 0; i < shared; i++) {
      const order = compareParts(a.parts[i], b.parts[i]);
      if (order !== 0) return order;
    }
    return a.parts.length - b.parts.length || compare(a.name, b.name);
  });
  const ordered = keyed.map(({ name }) => name);
  return newestFirst ? ordered.reverse() : ordered;
}
