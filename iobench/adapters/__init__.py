"""Adapters: what training code reads and decodes, timed from outside with no change to it.

The functions are rows of one table (`iobench.adapters.table`); packages add rows of their own. A
timed function records nothing until a recorder is active, and is put in place only once its
library is imported.
"""

from typing import Final

from iobench.adapters.patches import TimedCall

__all__ = ["TimedCall"]

ADAPTERS: Final = "IOBENCH_RUN_ADAPTERS"
"""Environment: rows of installed packages as ``MODULE=PLACE,...``, found once for a command."""
