"""Local servers that speak the vendors' wire formats from a script, including faults."""
