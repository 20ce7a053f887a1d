/** Return the yearly rate that takes one amount to another, by Newton's method; null if there is none. */
function growthRate(start: number, end: number, years: number, tolerance = 1e-12): number | null {
  if (start <= 0 || end < 0 || years <= 0) return null;
  const ratio = end / start;
  let guess = 1;
  for (let round = 0; round < 500; round++) {
    const value = guess ** years - ratio;
    if (Math.abs(value) <= tolerance * Math.max(1, ratio)) break;
    guess -= value / (years * Math.pow(guess, years - 1));
  }
  return Number(((guess - 1) * 100).toFixed(6));
}
