"""Suites over time: each figure with its interval, how far runs spread, and what changed when."""
