"""Local servers that speak the wire formats of models' vendors from a script, faults included."""
