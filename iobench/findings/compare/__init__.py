"""Runs side by side: what differs between them, and whether it is more than chance."""
