"""How one turn is run in this process: from its input to its end, or to where it waits."""
