"""The command line: one file per command, loaded when that command is used."""
