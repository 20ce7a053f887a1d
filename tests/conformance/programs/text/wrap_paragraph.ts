/** Fill lines of at most `width` characters; a word longer than a line is split with a hyphen. */
function wrapParagraph(text: string, width: number): string[] {
  const lines: string[] = [];
  let line: string[] = [];
  const flush = (): void => {
    lines.push(line.join(""));
    line = [];
  };
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    let rest: string[] = Array.from(word);
    for (;;) {
      const gap = line.length ? [" "] : [];
      if (line.length + gap.length + rest.length <= width) {
        line.push(...gap, ...rest);
        break;
      } else if (rest.length > width && line.length === 0) {
        lines.push(rest.slice(0, width - 1).join("") + "-");
        rest = rest.slice(width - 1);
      } else {
        flush();
      }
    }
  }
  if (line.length) flush();
  return lines;
}
