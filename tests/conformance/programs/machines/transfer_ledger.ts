class LedgerError extends Error {}

class NotEnough extends LedgerError {
  constructor(name: string, public readonly missing: number) {
    super(`${name} lacks ${missing}`);
  }
}

class UnknownAccount extends LedgerError {
  constructor(readonly account: string) {
    super(`there is no account ${account}`);
  }
}

type Balances = Record<string, number>;
type Transfer = [giver: string, taker: string, amount: number];

function transfer(balances: Balances, [giver, taker, amount]: Transfer): Balances {
  for (const name of [giver, taker]) if (!(name in balances)) throw new UnknownAccount(name);
  const missing = amount - balances[giver];
  if (missing > 0) throw new NotEnough(giver, missing);
  const paid = { ...balances, [giver]: balances[giver] - amount };
  return { ...paid, [taker]: paid[taker] + amount };
}

/** Return balances after batches of transfers. A batch is applied completely or not at all. */
function transferLedger(accounts: Balances, batches: Transfer[][]) {
  let balances = accounts;
  let missing = 0;
  const failures: string[] = [];
  batches.forEach((batch, index) => {
    try {
      balances = batch.reduce(transfer, balances);
    } catch (error) {
      if (!(error instanceof LedgerError)) throw error;
      failures.push(`batch ${index + 1}: ${error.message}`);
      missing += error instanceof NotEnough ? error.missing : 0;
    }
  });
  return { balances, failures, missing };
}
