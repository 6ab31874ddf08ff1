"""Copies of stores and files on a disk near the CPUs: made once a node, verified, resumable."""
