MAX_DEPTH = 40


class Machine:
    """A stack, and words that are defined by others."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.words: dict[str, list[str]] = {}

    def pop(self) -> int:
        if not self.stack:
            raise ValueError("the stack is empty")
        return self.stack.pop()

    def run(self, tokens: list[str], depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise ValueError("too many words inside each other")
        for token in tokens:
            if token in self.words:
                self.run(self.words[token], depth + 1)
            elif token.lstrip("-").isdigit():
                self.stack.append(int(token))
            else:
                self.apply(token)

    def apply(self, word: str) -> None:
        match word:
            case "+" | "-" | "*" | "/":
                b, a = self.pop(), self.pop()
                if word == "/" and b == 0:
                    raise ValueError("division by zero")
                self.stack.append({"+": a + b, "-": a - b, "*": a * b}[word] if word != "/" else a // b)
            case "dup":
                top = self.pop()
                self.stack += [top, top]
            case "swap":
                b, a = self.pop(), self.pop()
                self.stack += [b, a]
            case "drop":
                self.pop()
            case unknown:
                raise ValueError(f"there is no word {unknown}")


def stack_machine(lines: list[str]) -> dict[str, object]:
    """Run a program in postfix notation; `: name words ;` defines a word."""
    machine = Machine()
    for number, line in enumerate(lines, start=1):
        tokens = line.split()
        try:
            if tokens[:1] == [":"] and tokens[-1] == ";" and len(tokens) > 2:
                machine.words[tokens[1]] = tokens[2:-1]
            else:
                machine.run(tokens)
        except ValueError as error:
            return {"stack": machine.stack, "error": f"line {number}: {error}"}
    return {"stack": machine.stack, "error": None}
