"""Short runs in turns: whether a change gains what was said."""
