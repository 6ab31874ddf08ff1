"""One name for each file, however spans and a tracer spell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.placement.traced_stages import file_of, match_names
from iobench.analysis.read_spans import NOT_SUMMED
from iobench.recording.kinds import WORKER_KINDS, is_one_of
from iobench.storage.traces.interpreter_files import is_of_interpreter

if TYPE_CHECKING:
    from iobench.profiles.contents import Profile
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["NamedFiles"]


class NamedFiles:
    """Finds the name of a file: the tracer's path, or the folder of a store that spans name.

    Files of Python itself have none: a run whose spans name no others names none.

    Parameters
    ----------
    profile : Profile
    trace : StorageTrace or None
    """

    def __init__(self, profile: Profile, trace: StorageTrace | None) -> None:
        spans = profile.spans
        chosen = ((spans["flags"] & NOT_SUMMED) == 0) & is_one_of(spans["kind"], WORKER_KINDS)
        texts = [profile.strings[each] for each in np.unique(spans["detail"][chosen]).tolist()]
        texts = [text for text in texts if not is_of_interpreter(text)]
        traced = trace.processes if trace is not None else ()
        files = list(dict.fromkeys(name for each in traced for name in each.files))
        found = match_names(texts, files)
        paths = {number: file_of(text) for text, number in found.folder.items()}
        self._of_text = {text: file_of(text) for text in texts}
        self._of_text |= {text: paths[number] for text, number in found.folder.items()}
        self._of_text |= {text: files[number] for text, number in found.file.items()}
        self._of_file: dict[str, str] = {}
        for number in found.file.values():
            self._of_file[files[number]] = files[number]
        for name, folder in zip(files, found.folder_of.tolist(), strict=True):
            if folder >= 0:
                self._of_file.setdefault(name, paths[folder])
        self._any = any(self._of_text.values())

    def __bool__(self) -> bool:
        return self._any

    def of_text(self, text: str) -> str:
        """Return the name of the file that a span's text names; ``""`` if that is none."""
        return self._of_text.get(text, "")

    def of_file(self, path: str) -> str | None:
        """Return the name of a tracer's file; its path if spans name no files, None if not this."""
        return self._of_file.get(path) if self._any else path
