"""Darshan's logs of a run: one of each process, found, read and joined by the names of files."""

from iobench.storage.darshan.run_logs import read_darshan_logs

__all__ = ["read_darshan_logs"]
