"""The command line: one file per command, loaded when that command is used."""

import gc

gc.set_threshold(20_000)  # by default the collector looks some 150 times while a command's modules load
