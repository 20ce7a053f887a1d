"""`python -m standfast` is the command `standfast`."""

from standfast.cli.main import main

main(prog_name="python -m standfast")
