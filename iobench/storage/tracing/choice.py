"""What ``--darshan`` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DarshanChoice"]

NOT_ASKED = "not asked for; --darshan auto traces the reads of a run, if there is a runtime"
OWN_LOGS = "the logs are of a Darshan that iobench did not set up"


@dataclass(frozen=True, slots=True)
class DarshanChoice:
    """Whether a run is to be traced by us, or has logs of the user's own set-up.

    Parameters
    ----------
    auto : bool
        Trace it, where there is a runtime that works.
    logs : tuple of Path
        Files, or folders of them, absolute; what lies there when a report is made is read.
    """

    auto: bool = False
    logs: tuple[Path, ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Return what the words of the option mean: ``auto``, ``off``, or paths of logs.

        Raises
        ------
        OptionError
            If a path is not there, or ``auto`` or ``off`` stands beside something else.
        """
        if list(words) in ([], ["off"]):
            return cls()
        if list(words) == ["auto"]:
            return cls(auto=True)
        if {"auto", "off"} & set(words):
            raise OptionError(
                f"--darshan {' '.join(words)}: expected auto, off, or paths of logs, not several"
            )
        for word in words:
            if not Path(word).exists():
                raise OptionError(
                    f"--darshan {word}: is not there; expected auto, off, a log, or the folder "
                    "that your Darshan writes its logs to"
                )
        return cls(logs=tuple(Path(word).absolute() for word in words))

    def document(self) -> dict[str, Any]:
        """Return what ``run.json`` says of a run that is not traced by us."""
        if self.logs:
            return {
                "state": "on",
                "reason": OWN_LOGS,
                "runtime": "",
                "logs": [str(path) for path in self.logs],
                "set": {},
            }
        return {"state": "off", "reason": NOT_ASKED}
