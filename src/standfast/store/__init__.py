"""Stores: `memory_sessions` ends with the process, `sqlite.sessions` is one file; `rules` is for both."""
