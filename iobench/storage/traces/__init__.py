"""What tracers of system calls saw: the logs of a run, read into one shape."""
