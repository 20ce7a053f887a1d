"""Frozen values, one file per concept. No I/O, no clock."""
