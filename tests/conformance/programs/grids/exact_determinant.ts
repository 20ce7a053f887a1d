type Matrix = readonly (readonly bigint[])[];

const minor = (matrix: Matrix, column: number): Matrix =>
  matrix.slice(1).map((row) => row.filter((_, place) => place !== column));

function expand(matrix: Matrix): bigint {
  if (matrix.length === 0) return 1n;
  return matrix[0].reduce((sum, value, column) => {
    const sign = column % 2 === 0 ? 1n : -1n;
    return value === 0n ? sum : sum + sign * value * expand(minor(matrix, column));
  }, 0n);
}

/** Return the determinant of an integer matrix as text, without rounding. */
function exactDeterminant(matrix: number[][]): string {
  return expand(matrix.map((row) => row.map(BigInt))).toString();
}
