type Operand = string | number;
type Arithmetic = "set" | "add" | "sub" | "mul";
type Instruction = [Arithmetic, string, Operand] | ["jz" | "jp", Operand, number] | ["out", Operand];

interface Outcome {
  registers: Record<string, number>;
  output: number[];
  halted: boolean;
}

const arithmetic = {
  set: (_: number, b: number) => b,
  add: (a: number, b: number) => a + b,
  sub: (a: number, b: number) => a - b,
  mul: (a: number, b: number) => a * b,
} satisfies Record<Arithmetic, (a: number, b: number) => number>;

/** Run a small assembler: set, add, sub, mul, jump if zero or positive, out. `fuel` limits the steps. */
function registerMachine(program: Instruction[], start: Record<string, number>, fuel = 10_000): Outcome {
  const registers: Record<string, number> = { ...start };
  const output: number[] = [];
  const value = (of: Operand): number => (typeof of === "number" ? of : registers[of] ?? 0);

  for (let place = 0, steps = 0; place >= 0 && place < program.length; place++, steps++) {
    if (steps === fuel) return { registers, output, halted: false };
    const instruction = program[place];
    switch (instruction[0]) {
      case "out":
        output.push(value(instruction[1]));
        break;
      case "jz":
      case "jp": {
        const [kind, of, offset] = instruction;
        const jumps = kind === "jz" ? value(of) === 0 : value(of) > 0;
        if (jumps) place += offset - 1;
        break;
      }
      default: {
        const [kind, name, of] = instruction;
        registers[name] = arithmetic[kind](value(name), value(of));
      }
    }
  }
  return { registers, output, halted: true };
}
