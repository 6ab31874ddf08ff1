"""A run packed to be passed on: paths, users and hosts scrubbed."""
