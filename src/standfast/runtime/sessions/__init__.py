"""The sessions of a runtime: how they are found, built, cached, observed and recovered."""
