"""Models behind HTTP: one layer that streams, and what each vendor's dialect has to tell it."""
