type Clock = `${number}:${number}`;
type Span = { from: number; to: number };

const minutes = (clock: Clock): number => {
  const [hours, rest] = clock.split(":").map((part) => parseInt(part, 10));
  return hours * 60 + rest;
};
const clockTime = (minute: number): string =>
  [Math.floor(minute / 60), minute % 60].map((part) => String(part).padStart(2, "0")).join(":");

/** Return the gaps of at least `least` minutes that meetings, which may overlap, leave in a day. */
function freeSlots(meetings: [Clock, Clock][], opens: Clock, closes: Clock, least: number): string[] {
  let gaps: Span[] = [{ from: minutes(opens), to: minutes(closes) }];
  for (const [start, end] of meetings) {
    const busy: Span = { from: minutes(start), to: minutes(end) };
    gaps = gaps.flatMap((gap) => [
      { from: gap.from, to: Math.min(gap.to, busy.from) },
      { from: Math.max(gap.from, busy.to), to: gap.to },
    ].filter(({ from, to }) => to > from));
  }
  const long = gaps.filter(({ from, to }) => to - from >= least);
  return long.map(({ from, to }) => `${clockTime(from)}–${clockTime(to)}`);
}
