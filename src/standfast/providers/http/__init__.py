"""Shared code of all vendors: HTTP, server-sent events, deadlines, keys and failures."""
