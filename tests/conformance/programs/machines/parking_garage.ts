type GarageEvent = [kind: "in" | "out", plate: string, minute: number];

class Garage {
  #free: number[];
  #parked = new Map<string, { place: number; since: number }>();
  #income = 0;

  constructor(places: number, private readonly rate: number) {
    this.#free = Array.from({ length: places }, (_, i) => i + 1);
  }

  get parked(): Record<string, number> {
    return Object.fromEntries([...this.#parked].map(([plate, { place }]) => [plate, place]));
  }

  get income(): number {
    return this.#income;
  }

  in(plate: string, minute: number): string {
    if (this.#parked.has(plate)) return `${plate} is inside already`;
    const place = this.#free.sort((a, b) => a - b).shift();
    if (place === undefined) return "full";
    this.#parked.set(plate, { place, since: minute });
    return `place ${place}`;
  }

  out(plate: string, minute: number): string {
    const stay = this.#parked.get(plate);
    if (!stay) return `${plate} is not inside`;
    this.#parked.delete(plate);
    this.#free.push(stay.place);
    const cost = this.rate * Math.ceil((minute - stay.since) / 60);
    this.#income += cost;
    return `pays ${cost}`;
  }
}

/** Return the garage's answers to cars that come and go, the cars left in it, and its income. */
function parkingGarage(places: number, rate: number, events: GarageEvent[]) {
  const garage = new Garage(places, rate);
  const answers = events.map(([kind, plate, minute]) => garage[kind](plate, minute));
  const { parked, income } = garage;
  return { answers, parked, income };
}
