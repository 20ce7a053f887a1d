const DAY_MS = 86_400_000;
const iso = (time: number): string => new Date(time).toISOString().slice(0, 10);

/** Return the date `days` working days after a date (before it if negative), skipping holidays. */
function businessDay(start: string, days: number, holidays: string[]): string {
  const closed = new Set(holidays);
  const works = (time: number): boolean => {
    const weekday = new Date(time).getUTCDay();
    return weekday !== 0 && weekday !== 6 && !closed.has(iso(time));
  };
  let time = Date.parse(`${start}T00:00:00Z`);
  for (let left = Math.abs(days); left > 0 || !works(time); ) {
    time += days < 0 ? -DAY_MS : DAY_MS;
    if (works(time)) left--;
  }
  return iso(time);
}
