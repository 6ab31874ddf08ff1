"""A run packed to be passed on: paths, users and hosts scrubbed."""

from iobench.bundling.bundle import Bundle, Replacement, make_bundle

__all__ = ["Bundle", "Replacement", "make_bundle"]
