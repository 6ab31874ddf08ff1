"""What authors of datasets and stores test theirs with."""

from iobench.testing.clocks import FakeClock

__all__ = ["FakeClock"]
