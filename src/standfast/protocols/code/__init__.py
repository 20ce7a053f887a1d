"""The code protocol: the model acts by writing cells of code."""
