"""``tracking.json``: what a run directory was told to, so that telling again finds it again.

It holds where a run was told to and what it is called there; no credentials.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from iobench.json_files import read_json
from iobench.masking import mask_urls
from iobench.report.written import write_whole

VERSION: Final = 1


class TrackingNotes:
    """What a run directory is called at the servers it was told to.

    Parameters
    ----------
    run : Path
        The run directory.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / "tracking.json"
        self._own = _read(self.path)

    def find(self, server: str, name: str) -> dict[str, Any] | None:
        """Return what is known of a part of the run at a server; None of nothing.

        Parameters
        ----------
        server : str
            Its URI, or the project, of which credentials are left out.
        name : str
            Of the part, as `RunContents.name`.
        """
        found = self._own.get(mask_urls(server), {}).get(name)
        return found if isinstance(found, dict) else None

    def keep(self, server: str, name: str, **known: Any) -> None:
        """Write down what a part of the run is called there; only for now in an archive.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        self._own.setdefault(mask_urls(server), {})[name] = known
        if not os.access(self.path.parent, os.W_OK):
            return  # kept where nobody may write: it can be told of still, but not found again
        document = {"version": VERSION, "told": self._own}
        write_whole(self.path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return what a file of notes says; nothing of one that is not there or cannot be read."""
    try:
        document = read_json(path)
    except (OSError, ValueError):
        return {}
    told = document.get("told") if isinstance(document, dict) else None
    if not isinstance(told, dict) or document.get("version") != VERSION:
        return {}
    return {key: value for key, value in told.items() if isinstance(value, dict)}
