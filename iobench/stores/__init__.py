"""Finished samples in standard containers: contract, manifest, checksums, framing, locks."""

from iobench.lazy_face import lazy_face

__getattr__, __dir__ = lazy_face(__name__, __file__)
