"""What ``iobench profile`` does, without the command line."""

from iobench.profiling.config import RunConfig
from iobench.profiling.run import profile

__all__ = ["RunConfig", "profile"]
