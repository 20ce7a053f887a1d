"""Turns that survive their process: execute-or-replay over a journal, under a lease."""
