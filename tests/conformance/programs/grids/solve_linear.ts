/** Solve a system of linear equations; null unless there is exactly one solution. */
function solveLinear(matrix: number[][], right: number[]): Float64Array | number[] | null {
  const size = matrix.length;
  const rows: Float64Array[] = matrix.map((row, i) => Float64Array.from([...row, right[i]]));
  for (let step = 0; step < size; step++) {
    let pivot = step;
    for (let row = step + 1; row < size; row++) {
      if (Math.abs(rows[row][step]) > Math.abs(rows[pivot][step])) pivot = row;
    }
    if (Math.abs(rows[pivot][step]) < 1e-12) return null;
    [rows[step], rows[pivot]] = [rows[pivot], rows[step]];
    for (const row of rows) {
      if (row === rows[step]) continue;
      const factor = row[step] / rows[step][step];
      row.forEach((_, column) => (row[column] -= factor * rows[step][column]));
    }
  }
  return Array.from({ length: size }, (_, i) => rows[i][size] / rows[i][i]);
}
