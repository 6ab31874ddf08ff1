"""Recording: spans, their files, the run directory, and the only clock of the package."""
