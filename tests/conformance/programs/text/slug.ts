/** Convert a title to letters, digits and dashes for a URL; append a number if it is already taken. */
function slug(title: string, taken: Iterable<string>, limit: number = 24): string {
  const used = new Set<string>(taken);
  const plain = title.normalize("NFKD").replace(/\p{M}+/gu, "").toLowerCase();
  const words = plain.replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const base = words.slice(0, limit).replace(/-+$/, "") || "untitled";
  let found = base;
  for (let number = 2; used.has(found); number++) found = `${base}-${number}`;
  return found;
}
