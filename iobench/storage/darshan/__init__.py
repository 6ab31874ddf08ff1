"""Darshan's logs of a run: one of each process, found, read and joined by the names of files."""
