const UNITS = { week: 604_800, day: 86_400, hour: 3_600, minute: 60, second: 1 } as const;
type Unit = keyof typeof UNITS;

/** Format a duration with at most `parts` units, truncated; a negative one is in the past. */
function humanizeDuration(seconds: number, parts: number = 2): string {
  let left = Math.trunc(Math.abs(seconds));
  const words: string[] = [];
  for (const unit of Object.keys(UNITS) as Unit[]) {
    const count = Math.floor(left / UNITS[unit]);
    left %= UNITS[unit];
    if (count > 0 && words.length < parts) words.push(`${count} ${unit}${count === 1 ? "" : "s"}`);
  }
  const last = words.pop();
  if (last === undefined) return "now";
  const text = words.length ? `${words.join(", ")} and ${last}` : last;
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}
