"""Replay: the loader's own rule run again over measured times, with something changed."""
