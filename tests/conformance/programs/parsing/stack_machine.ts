class MachineError extends Error {
  override readonly name = "MachineError";
}

type Word = (machine: StackMachine) => void;

class StackMachine {
  static readonly maxDepth = 40;
  readonly stack: number[] = [];
  private readonly words = new Map<string, Word>();
  private depth = 0;

  constructor() {
    this.binary("+", (a, b) => a + b);
    this.binary("-", (a, b) => a - b);
    this.binary("*", (a, b) => a * b);
    this.binary("/", (a, b) => {
      if (b === 0) throw new MachineError("division by zero");
      return Math.floor(a / b);
    });
    this.words.set("dup", (m) => m.push(...Array<number>(2).fill(m.pop())));
    this.words.set("swap", (m) => m.push(m.pop(), m.pop()));
    this.words.set("drop", (m) => void m.pop());
  }

  define(name: string, body: string[]): void {
    this.words.set(name, (machine) => machine.run(body));
  }

  run(tokens: string[]): void {
    if (this.depth++ > StackMachine.maxDepth) throw new MachineError("too many words inside each other");
    for (const token of tokens) {
      const word = this.words.get(token);
      if (word) word(this);
      else if (/^-*\d+$/.test(token)) this.push(Number(token));
      else throw new MachineError(`there is no word ${token}`);
    }
    this.depth--;
  }

  private push(...values: number[]): void {
    this.stack.push(...values);
  }

  private pop(): number {
    const value = this.stack.pop();
    if (value === undefined) throw new MachineError("the stack is empty");
    return value;
  }

  private binary(name: string, apply: (a: number, b: number) => number): void {
    this.words.set(name, (machine) => {
      const b = machine.pop();
      machine.push(apply(machine.pop(), b));
    });
  }
}

/** Run a program in postfix notation; `: name words ;` defines a word. */
function stackMachine(lines: string[]): { stack: number[]; error: string | null } {
  const machine = new StackMachine();
  for (const [index, line] of lines.entries()) {
    const tokens = line.split(/\s+/).filter((token) => token.length);
    try {
      const [colon, name, ...body] = tokens;
      if (colon === ":" && name && body.pop() === ";") machine.define(name, body);
      else machine.run(tokens);
    } catch (error) {
      if (!(error instanceof MachineError)) throw error;
      return { stack: machine.stack, error: `line ${index + 1}: ${error.message}` };
    }
  }
  return { stack: machine.stack, error: null };
}
