"""What a pass over a loader is for, by the name under which a script has the loader."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

DEEPEST: Final = 40  # frames above a pass that are looked at
OUR_MODULES: Final = ("iobench", "torch")
WORDS: Final = {
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("pred", "predict", "prediction", "infer", "inference"), "prediction"),
    **dict.fromkeys(("train", "training"), "training"),
}
NO_SCRIPTS: Final = ("iobench.", "runpy")
BETWEEN_WORDS: Final = re.compile(r"[^a-zA-Z]+|(?<=[a-z])(?=[A-Z])")


def frames_above() -> list[FrameType]:
    """Return the frames above the caller's caller, the nearest first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < DEEPEST:
        frames.append(frame)
        frame = frame.f_back
    return frames


def generator_above() -> str:
    """Return the generator of a script that asks for a batch, by name; ``""`` where none does.

    Of packages neither generators nor whoever calls them are looked at: a bar of progress is none.
    """
    for frame in frames_above():
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        code = frame.f_code
        if module not in OUR_MODULES and "-packages" not in code.co_filename:
            name: str = getattr(code, "co_qualname", code.co_name)
            return name.rpartition("<locals>.")[2] if code.co_flags & inspect.CO_GENERATOR else ""
    return ""


def role_by_name(loader: Any, frames: Iterable[FrameType]) -> str:
    """Return what a name says under which a module has the loader; ``""`` where none does."""
    of_modules = {id(frame.f_globals): frame.f_globals for frame in frames}
    for names in of_modules.values():
        if str(names.get("__name__")).startswith(NO_SCRIPTS):
            continue
        if not any(map(operator.is_, [*names.values()], itertools.repeat(loader))):
            continue
        for name, value in [*names.items()]:
            if value is loader:
                for word in BETWEEN_WORDS.split(name):
                    if word.lower() in WORDS:
                        return WORDS[word.lower()]
    return ""
