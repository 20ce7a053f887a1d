"""The code protocol: a model acts by writing cells."""
