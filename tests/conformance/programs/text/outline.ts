interface Section {
  title: string;
  parts: Section[];
}

class OutlineWriter {
  readonly lines: string[] = [];
  #numbers: number[] = [0];

  section(title: string, body: () => void): void {
    this.#numbers[this.#numbers.length - 1]++;
    const indent = "  ".repeat(this.#numbers.length - 1);
    this.lines.push(`${indent}${this.#numbers.join(".")} ${title}`);
    this.#numbers.push(0);
    try {
      body();
    } finally {
      this.#numbers.pop();
    }
  }
}

/** Return the numbered headings of a document, indented by depth. */
function outline(parts: Section[]): string[] {
  const writer = new OutlineWriter();
  const write = (inner: Section[]): void =>
    inner.forEach(({ title, parts }) => writer.section(title, () => write(parts)));
  write(parts);
  return writer.lines;
}
