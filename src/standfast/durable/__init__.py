"""Durable turns: each effect is executed once or replayed from the turn's journal, under a lease."""
