"""What authors test theirs with: suites for datasets, formats and findings, a clock by hand."""

from iobench.lazy_face import lazy_face

__getattr__, __dir__ = lazy_face(__name__, __file__)
