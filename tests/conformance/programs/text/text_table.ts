const pads = {
  left: (cell: string, width: number) => cell.padEnd(width),
  right: (cell: string, width: number) => cell.padStart(width),
  center: (cell: string, width: number) => cell.padStart((width + cell.length) >> 1).padEnd(width),
} as const;

type Align = keyof typeof pads;

/** Format rows as a text table; short rows are padded with empty cells, trailing spaces are removed. */
function textTable(rows: string[][], aligns: Align[]): string {
  const cellOf = (row: string[], column: number): string => row[column] ?? "";
  const widths = aligns.map((_, column) => Math.max(...rows.map((row) => cellOf(row, column).length)));
  return rows
    .map((row) => aligns.map((align, column) => pads[align](cellOf(row, column), widths[column])).join(" | ").trimEnd())
    .join("\n");
}
