const isLeap = (year: number): boolean => year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);

const daysIn = (year: number, month: number): number =>
  month === 2 ? (isLeap(year) ? 29 : 28) : [4, 6, 9, 11].includes(month) ? 30 : 31;

/** Return the weekday of the first of a month, 0 for Monday (Sakamoto's method). */
function firstWeekday(year: number, month: number): number {
  const shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][month - 1];
  const y = month < 3 ? year - 1 : year;
  const sunday = (y + Math.floor(y / 4) - Math.floor(y / 100) + Math.floor(y / 400) + shift + 1) % 7;
  return (sunday + 6) % 7;
}

/** Return a month as lines of weeks that start on Monday. */
function calendarPage(year: number, month: number): string[] {
  const cells: string[] = Array(firstWeekday(year, month)).fill("  ");
  for (let day = 1; day <= daysIn(year, month); day++) cells.push(String(day).padStart(2));
  const weeks: string[] = [];
  while (cells.length) weeks.push(cells.splice(0, 7).join(" "));
  return ["Mo Tu We Th Fr Sa Su", ...weeks];
}
