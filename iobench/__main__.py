"""``python -m iobench``: the command line, of this Python."""

from __future__ import annotations

import sys

from iobench.cli import main

if __name__ == "__main__":
    sys.exit(main())
