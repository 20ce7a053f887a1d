const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

function* regroup(values: Iterable<number>, from: number, to: number, fill: boolean): Generator<number> {
  let [buffer, bits] = [0, 0];
  for (const value of values) {
    buffer = ((buffer << from) | value) & 0xffff;
    bits += from;
    while (bits >= to) {
      bits -= to;
      yield (buffer >> bits) & ((1 << to) - 1);
    }
  }
  if (fill && bits > 0) yield (buffer << (to - bits)) & ((1 << to) - 1);
}

function encode(text: string): string {
  const letters = [...regroup(new TextEncoder().encode(text), 8, 5, true)].map((value) => ALPHABET[value]).join("");
  return letters.padEnd(Math.ceil(letters.length / 8) * 8, "=");
}

function decode(text: string): string | null {
  const values = [...text.replace(/=+$/, "").toUpperCase()].map((letter) => ALPHABET.indexOf(letter));
  if (values.includes(-1)) return null;
  return new TextDecoder().decode(Uint8Array.from(regroup(values, 5, 8, false)));
}

/** Encode texts in base 32, or decode them; null for a text that is not base 32. */
function base32Text(texts: string[], back: boolean = false): (string | null)[] {
  return texts.map(back ? decode : encode);
}
