"""Gates for CI: what passes, what is a regression, and what is unknown."""
