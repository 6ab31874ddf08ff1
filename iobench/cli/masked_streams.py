"""stdout and stderr of a command: whatever is printed, by whomever, tells no credential."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from iobench.masking import mask_text, note_secrets


class _MaskedStream:
    """A text stream with the face of the one beneath; has no ``buffer``, which would go past it."""

    def __init__(self, beneath: TextIO) -> None:
        self._beneath = beneath

    def write(self, text: str) -> int:
        self._beneath.write(mask_text(text))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._beneath, name)


@contextmanager
def masked_streams(arguments: Sequence[str]) -> Iterator[None]:
    """Mask what goes to stdout and stderr meanwhile; the secrets of the arguments anywhere in it.

    After an exception that nobody foresaw they stay masked: its traceback is still to come.
    """
    note_secrets(arguments)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _MaskedStream(stream)) for stream in before)
    yield
    sys.stdout, sys.stderr = before
