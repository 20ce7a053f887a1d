"""The command line: one file per command, loaded when that command is used."""

import gc

gc.set_threshold(100_000)  # the default would run some 150 collections while a command's modules load
