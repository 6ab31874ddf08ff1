"""Darshan's logs of a run: one of each process, found, read and joined by the names of files."""

from iobench.storage.darshan.integrity import is_log_start
from iobench.storage.darshan.names import is_log_name
from iobench.storage.darshan.run_logs import read_darshan_logs

__all__ = ["is_log_name", "is_log_start", "read_darshan_logs"]
