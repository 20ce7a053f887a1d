const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz";

/** Convert an integer of any size from one base to another; null if it has an invalid digit. */
function convertBase(text: string, source: number, target: number): string | null {
  const [, sign, digits] = /^(-?)(.*)$/s.exec(text)!;
  if (!digits) return null;
  let value = 0n;
  for (const letter of digits.toLowerCase()) {
    const digit = DIGITS.indexOf(letter);
    if (digit < 0 || digit >= source) return null;
    value = value * BigInt(source) + BigInt(digit);
  }
  return value === 0n ? "0" : sign + value.toString(target);
}
