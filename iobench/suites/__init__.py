"""Suites: a matrix of profiles by a recipe, in rounds, and what they found."""
