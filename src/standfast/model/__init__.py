"""Frozen values, one file per idea. No I/O, no clock."""
