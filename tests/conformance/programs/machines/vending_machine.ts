enum State {
  IDLE = "IDLE",
  PAYING = "PAYING",
  BROKEN = "BROKEN",
}

type Reply = { state: State; paid: number; says: string };

class VendingMachine {
  state = State.IDLE;
  private paid = 0;

  constructor(private price: number) {}

  on(event: string): string {
    const { state, paid, says } = this.react(event);
    [this.state, this.paid] = [state, paid];
    return says;
  }

  private react(event: string): Reply {
    const [verb, amount] = event.split(" ");
    if (this.state === State.BROKEN) {
      return verb === "repair" ? { state: State.IDLE, paid: 0, says: "ready" } : { ...this.same, says: "out of order" };
    }
    if (verb === "kick") return { state: State.BROKEN, paid: 0, says: `broken, ${this.paid} lost` };
    if (verb === "coin" && Number(amount) > 0) return this.take(Number(amount));
    if (verb === "cancel" && this.state === State.PAYING) {
      return { state: State.IDLE, paid: 0, says: `${this.paid} back` };
    }
    return { ...this.same, says: "nothing happens" };
  }

  private get same(): Pick<Reply, "state" | "paid"> {
    return { state: this.state, paid: this.paid };
  }

  private take(amount: number): Reply {
    const change = this.paid + amount - this.price;
    if (change < 0) return { state: State.PAYING, paid: this.paid + amount, says: `${-change} to pay` };
    return { state: State.IDLE, paid: 0, says: change ? `drink and ${change} back` : "drink" };
  }
}

/** Return the machine's answer to each event, and its final state. */
function vendingMachine(price: number, events: string[]): string[] {
  const machine = new VendingMachine(price);
  return [...events.map((event) => machine.on(event)), State[machine.state]];
}
