"""The history of sessions: append-only nodes, branches, frames. Pure functions."""
