type Edit = `${"=" | "-" | "+"}${string}`;

/** Return the fewest edits between two texts: `=x` keeps, `-x` deletes, `+x` inserts (after deletions). */
function editScript(old: string, fresh: string): Edit[] {
  const [a, b] = [[...old], [...fresh]];
  const memo = new Map<number, number>();
  const cost = (i: number, j: number): number => {
    if (i === a.length || j === b.length) return a.length - i + b.length - j;
    const key = i * (b.length + 1) + j;
    let found = memo.get(key);
    if (found === undefined) {
      found = a[i] === b[j] ? cost(i + 1, j + 1) : 1 + Math.min(cost(i + 1, j), cost(i, j + 1));
      memo.set(key, found);
    }
    return found;
  };
  const script: Edit[] = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    if (i < a.length && a[i] === b[j]) {
      script.push(`=${a[i]}`);
      i++, j++;
    } else if (i < a.length && (j === b.length || cost(i + 1, j) <= cost(i, j + 1))) script.push(`-${a[i++]}`);
    else script.push(`+${b[j++]}`);
  }
  return script;
}
