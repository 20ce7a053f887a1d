function product<A, B, C>(as: A[], bs: B[], combine: (a: A, b: B) => C): C[] {
  return as.flatMap((a) => bs.map((b) => combine(a, b)));
}

function closing(pattern: string, opened: number): number {
  let depth = 0;
  for (let place = opened; place < pattern.length; place++) {
    if (pattern[place] === "{") depth++;
    if (pattern[place] === "}" && --depth === 0) return place;
  }
  return -1;
}

function alternatives(inside: string): string[] {
  const range = /^(?<first>-?\d+)\.\.(?<last>-?\d+)$/.exec(inside)?.groups;
  if (range) {
    const [first, last] = [Number(range.first), Number(range.last)];
    return Array.from({ length: Math.abs(last - first) + 1 }, (_, i) => String(first + Math.sign(last - first) * i));
  }
  const parts: string[] = [];
  let start = 0;
  for (let place = 0; place <= inside.length; place++) {
    if (inside[place] === "{") {
      const end = closing(inside, place);
      if (end > 0) place = end;
    } else if (place === inside.length || inside[place] === ",") {
      parts.push(inside.slice(start, place));
      start = place + 1;
    }
  }
  return parts.flatMap(braceExpand);
}

/** Expand a pattern with braces to every text, as in a shell; an unclosed brace is plain text. */
function braceExpand(pattern: string): string[] {
  const opened = pattern.indexOf("{");
  const closed = opened < 0 ? -1 : closing(pattern, opened);
  if (closed < 0) return [pattern];
  const head = pattern.slice(0, opened);
  const inside = alternatives(pattern.slice(opened + 1, closed));
  return product(inside, braceExpand(pattern.slice(closed + 1)), (a, b) => head + a + b);
}
