namespace Calculator {
  type Binary = (a: number, b: number) => number;
  interface Operator {
    readonly binding: number;
    readonly rightward?: true;
    readonly apply: Binary;
  }

  const divide: Binary = (a, b) => {
    if (b === 0) throw new RangeError("division by zero");
    return a / b;
  };

  const OPERATORS: Partial<Record<string, Operator>> = {
    "+": { binding: 1, apply: (a, b) => a + b },
    "-": { binding: 1, apply: (a, b) => a - b },
    "*": { binding: 2, apply: (a, b) => a * b },
    "/": { binding: 2, apply: divide },
    "^": { binding: 3, rightward: true, apply: (a, b) => a ** b },
  };

  export class Parser {
    private place = 0;

    constructor(private readonly tokens: string[]) {}

    parse(): number {
      const value = this.expression(1);
      if (this.peek() !== undefined) throw new SyntaxError(`'${this.peek()}' is not expected`);
      return value;
    }

    private peek(): string | undefined {
      return this.tokens[this.place];
    }

    private expression(least: number): number {
      let value = this.unary();
      for (;;) {
        const operator = OPERATORS[this.peek() ?? ""];
        if (!operator || operator.binding < least) return value;
        this.place++;
        value = operator.apply(value, this.expression(operator.rightward ? operator.binding : operator.binding + 1));
      }
    }

    private unary(): number {
      if (this.peek() !== "-") return this.atom();
      this.place++;
      return -this.expression(3);
    }

    private atom(): number {
      const token = this.tokens[this.place++];
      if (token === "(") {
        const value = this.expression(1);
        if (this.tokens[this.place++] !== ")") throw new SyntaxError("a bracket is not closed");
        return value;
      }
      if (token === undefined) throw new SyntaxError("a number is missing at the end");
      if (!/^[\d.]/.test(token)) throw new SyntaxError(`a number is missing before '${token}'`);
      return parseFloat(token);
    }
  }
}

/** Return the value of an expression with + - * / ^ and brackets, or the error in it. */
function calculate(expression: string): number | string {
  const tokens = expression.match(/\d+\.?\d*|\.\d+|\S/gu) ?? [];
  try {
    return new Calculator.Parser(tokens).parse();
  } catch (error: unknown) {
    if (error instanceof SyntaxError || error instanceof RangeError) return error.message;
    throw error;
  }
}
