"""Loaders of grain, as JAX's trainings use them, and what JAX moves to its devices."""
