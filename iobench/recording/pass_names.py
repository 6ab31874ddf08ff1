"""What a pass over a loader is for, by the name under which a script has the loader."""

from __future__ import annotations

import itertools
import operator
import re
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

DEEPEST: Final = 40  # frames above a pass that are looked at
WORDS: Final = {
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("pred", "predict", "prediction", "infer", "inference"), "prediction"),
    **dict.fromkeys(("train", "training"), "training"),
}
BETWEEN_WORDS: Final = re.compile(r"[^a-zA-Z]+|(?<=[a-z])(?=[A-Z])")


def frames_above() -> list[FrameType]:
    """Return the frames above the caller's caller, the nearest first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < DEEPEST:
        frames.append(frame)
        frame = frame.f_back
    return frames


def role_by_name(loader: Any, frames: Iterable[FrameType]) -> str:
    """Return what a name says under which a module has the loader; ``""`` where none does."""
    of_modules = {id(frame.f_globals): frame.f_globals for frame in frames}
    for names in of_modules.values():
        if not any(map(operator.is_, [*names.values()], itertools.repeat(loader))):
            continue
        for name, value in [*names.items()]:
            if value is loader:
                for word in BETWEEN_WORDS.split(name):
                    if word.lower() in WORDS:
                        return WORDS[word.lower()]
    return ""
