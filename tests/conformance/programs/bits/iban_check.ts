const LENGTHS = { BE: 16, CH: 21, DE: 22, FR: 27, GB: 22, NO: 15 } as const;
type Country = keyof typeof LENGTHS;
type Verdict = { valid: true; shown: string } | { valid: false; reason: "form" | "country" | "length" | "checksum" };

function isCountry(code: string): code is Country {
  return code in LENGTHS;
}

/** Check the form and the check digits of an account number; if it is valid, show it in groups of four. */
function ibanCheck(text: string): Verdict {
  const number = text.replace(/\s+/g, "").toUpperCase();
  const refuse = (reason: Extract<Verdict, { valid: false }>["reason"]): Verdict => ({ valid: false, reason });
  if (!/^[A-Z]{2}[0-9]{2}[A-Z0-9]+$/.test(number)) return refuse("form");
  const country = number.slice(0, 2);
  if (!isCountry(country)) return refuse("country");
  if (LENGTHS[country] !== number.length) return refuse("length");
  const digits = Array.from(number.slice(4) + number.slice(0, 4), (letter) => parseInt(letter, 36)).join("");
  if (BigInt(digits) % 97n !== 1n) return refuse("checksum");
  return { valid: true, shown: number.match(/.{1,4}/g)!.join(" ") };
}
