"""Profiles: a run directory read back, the spans of all its processes in one table."""
