"""What authors test theirs with: suites for datasets, formats and findings, a clock by hand."""

import sys

from iobench.lazy_face import lazy_face

SUITES = ("datasets", "findings", "loaders", "stand_ins", "stores")
if pytest := sys.modules.get("pytest"):  # else a failure does not say what was compared
    pytest.register_assert_rewrite(*(f"{__name__}.{each}" for each in SUITES))
__getattr__, __dir__ = lazy_face(__name__, __file__)
