class SeatRow {
  #taken = "";

  constructor(readonly width: number) {}

  get free(): number {
    return this.width - this.#taken.length;
  }

  seat(label: string, count: number): this {
    this.#taken += label.repeat(count);
    return this;
  }

  toString(): string {
    return this.#taken.padEnd(this.width, "·");
  }
}

/** Seat groups side by side, the largest first, each in the fullest row that has room for it. */
function seatMap(rows: number, columns: number, groups: number[]): string[] | null {
  const seats = Array.from({ length: rows }, () => new SeatRow(columns));
  const order = groups
    .map((size, group) => ({ size, label: String.fromCharCode(65 + group) }))
    .sort((a, b) => b.size - a.size);
  for (const { size, label } of order) {
    const fitting = seats.filter((row) => row.free >= size);
    if (!fitting.length) return null;
    fitting.reduce((best, row) => (row.free < best.free ? row : best)).seat(label, size);
  }
  return seats.map(String);
}
