"""Bytes of files of this machine: ranges of them, read, joined, and the descriptors for it."""
