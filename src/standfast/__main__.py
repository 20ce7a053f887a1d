"""Entry point of `python -m standfast`, which runs the `standfast` command."""

from standfast.cli.main import main

main(prog_name="python -m standfast")
