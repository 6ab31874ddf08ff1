"""The one lock under which streams use the NetCDF library, free in every forked process.

xarray's own lock, were it held by a thread at the moment another one forks, would stay held in the
child for ever: its first file would hang it.
"""

from __future__ import annotations

import os
import threading
from typing import Final

LIBRARY: Final = threading.RLock()
"""Held by whoever is in the library; a fork waits for it."""

os.register_at_fork(
    before=LIBRARY.acquire,
    after_in_parent=LIBRARY.release,
    after_in_child=LIBRARY.release,
)
