const SMALL_WORDS: ReadonlySet<string> = new Set(["a", "an", "and", "de", "for", "la", "of", "the", "und"]);

/** Return the initials of a phrase in capitals; small words count only at the start. */
function acronym(phrase: string, dotted = false): string {
  const words = phrase.split(/[\s-]+/u).filter((word) => /^\p{L}/u.test(word));
  const kept = words.filter((word, place) => place === 0 || !SMALL_WORDS.has(word.toLowerCase()));
  const initials = kept.map((word) => [...word][0].toUpperCase());
  return dotted && initials.length > 0 ? `${initials.join(".")}.` : initials.join("");
}
