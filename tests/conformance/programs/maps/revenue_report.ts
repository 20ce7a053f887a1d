interface Order {
  price: string;
  count: number;
  [field: string]: string | number | undefined;
}

const toCents = (price: string): bigint => {
  const [units, cents = ""] = price.split(".");
  return BigInt(units + cents.padEnd(2, "0"));
};

const fromCents = (cents: bigint): string => {
  const units = String(cents / 100n).replace(/\B(?=(\d{3})+$)/g, ",");
  return `${units}.${String(cents % 100n).padStart(2, "0")}`;
};

/** Return exact totals in cents per group, the largest first, each with its share of the total. */
function revenueReport(orders: Order[], group: string): string[] {
  const totals: { [name: string]: bigint } = {};
  let whole = 0n;
  for (const order of orders) {
    const name = `${order[group] ?? "other"}`;
    const amount = toCents(order.price) * BigInt(order.count);
    totals[name] = (totals[name] ?? 0n) + amount;
    whole += amount;
  }
  return Object.entries(totals)
    .sort(([a, x], [b, y]) => (x === y ? (a < b ? -1 : 1) : x > y ? -1 : 1))
    .map(([name, total]) => {
      const share = whole ? Number((total * 1000n) / whole) : 0;
      return `${name}: ${fromCents(total)} (${Math.trunc(share / 10)}.${share % 10}%)`;
    });
}
