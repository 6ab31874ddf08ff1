"""Runs at the start of every Python of a profiled command; found first on ``PYTHONPATH``.

Straight-line code that any Python reads: the command may start older ones, which go on unseen.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib is not free
if os.environ.get("IOBENCH_RUN") and sys.version_info >= (3, 11):
    try:  # noqa: SIM105  contextlib is not free
        __import__("iobench_boot").start()
    except (ImportError, OSError, RuntimeError, ValueError):
        pass  # unseen, and listed as such

# The user's program finds sys.path as it would be, and so does the site's own sitecustomize.
sys.path[:] = [_each for _each in sys.path if _each != _here]
_ours = sys.modules.pop("sitecustomize", None)
try:
    __import__("sitecustomize")
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
