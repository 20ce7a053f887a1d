from enum import Enum, auto


class State(Enum):
    IDLE = auto()
    PAYING = auto()
    BROKEN = auto()


class VendingMachine:
    """Accepts coins, sells one drink for its price, and returns the change."""

    def __init__(self, price: int) -> None:
        self.price = price
        self.paid = 0
        self.state = State.IDLE

    def on(self, event: str) -> str:
        match self.state, event.split():
            case State.BROKEN, ["repair"]:
                self.state = State.IDLE
                return "ready"
            case State.BROKEN, _:
                return "out of order"
            case _, ["kick"]:
                lost, self.paid, self.state = self.paid, 0, State.BROKEN
                return f"broken, {lost} lost"
            case _, ["coin", amount] if int(amount) > 0:
                return self._take(int(amount))
            case State.PAYING, ["cancel"]:
                back, self.paid, self.state = self.paid, 0, State.IDLE
                return f"{back} back"
        return "nothing happens"

    def _take(self, amount: int) -> str:
        self.paid += amount
        if self.paid < self.price:
            self.state = State.PAYING
            return f"{self.price - self.paid} to pay"
        change, self.paid, self.state = self.paid - self.price, 0, State.IDLE
        return f"drink and {change} back" if change else "drink"


def vending_machine(price: int, events: list[str]) -> list[str]:
    """Return the machine's answer to each event, and its final state."""
    machine = VendingMachine(price)
    return [*(machine.on(event) for event in events), machine.state.name]
