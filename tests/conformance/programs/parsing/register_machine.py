from typing import Any


def register_machine(program: list[list[Any]], start: dict[str, int], fuel: int = 10_000) -> dict[str, Any]:
    """Run a small assembler: set, add, sub, mul, jump if zero or positive, out. `fuel` limits the steps."""
    registers = dict(start)
    output: list[int] = []
    place = steps = 0

    def value(of: Any) -> int:
        return of if isinstance(of, int) else registers.get(of, 0)

    while 0 <= place < len(program):
        if steps == fuel:
            return {"registers": registers, "output": output, "halted": False}
        steps += 1
        place += 1
        match program[place - 1]:
            case ["set", name, of]:
                registers[name] = value(of)
            case ["add", name, of]:
                registers[name] = value(name) + value(of)
            case ["sub", name, of]:
                registers[name] = value(name) - value(of)
            case ["mul", name, of]:
                registers[name] = value(name) * value(of)
            case ["jz", of, offset]:
                place += offset - 1 if value(of) == 0 else 0
            case ["jp", of, offset]:
                place += offset - 1 if value(of) > 0 else 0
            case ["out", of]:
                output.append(value(of))
            case unknown:
                raise ValueError(f"unknown instruction {unknown}")
    return {"registers": registers, "output": output, "halted": True}
