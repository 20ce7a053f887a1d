from typing import Any


class LedgerError(Exception):
    """A transfer that cannot be made."""


class NotEnough(LedgerError):
    def __init__(self, name: str, missing: int) -> None:
        super().__init__(f"{name} lacks {missing}")
        self.missing = missing


class UnknownAccount(LedgerError, KeyError):
    def __str__(self) -> str:
        return f"there is no account {self.args[0]}"


def transfer(accounts: dict[str, int], giver: str, taker: str, amount: int) -> None:
    for name in (giver, taker):
        if name not in accounts:
            raise UnknownAccount(name)
    if accounts[giver] < amount:
        raise NotEnough(giver, amount - accounts[giver])
    accounts[giver] -= amount
    accounts[taker] += amount


def transfer_ledger(accounts: dict[str, int], batches: list[list[tuple[str, str, int]]]) -> dict[str, Any]:
    """Return balances after batches of transfers. A batch is applied completely or not at all."""
    balances, failures, missing = dict(accounts), [], 0
    for number, batch in enumerate(batches, start=1):
        before = dict(balances)
        try:
            for giver, taker, amount in batch:
                transfer(balances, giver, taker, amount)
        except LedgerError as error:
            balances = before
            failures.append(f"batch {number}: {error}")
            if isinstance(error, NotEnough):
                missing += error.missing
    return {"balances": balances, "failures": failures, "missing": missing}
