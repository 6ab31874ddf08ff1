"""What users may choose of a dataset: its options as data, read from text and described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from iobench.errors import OptionError

LISTED = 12
"""Of more values the first and the last are named."""


class Option(msgspec.Struct, frozen=True):
    """An option of a dataset, given as ``--option NAME=VALUE``."""

    name: str
    text: str = ""  # what it does, a sentence; ``iobench info`` shows it
    default: Any = ""  # where it is not given; of True and False it is a flag: true or false
    values: Sequence[str] = ()  # those it may have; empty for any
    # whether it takes several, separated by commas: its value is a tuple, in the order of `values`
    many: bool = False
    # returns the value of a text, and raises OptionError for one it cannot use; where it takes
    # several, returns what each is among `values`
    parse: Callable[[str], Any] | None = None

    def value(self, text: str) -> Any:
        """Return the value of a text; OptionError lists those allowed."""
        if self.parse is not None and not self.many:
            return self.parse(text)
        if isinstance(self.default, bool):
            if text.lower() not in ("true", "false"):
                raise OptionError(f"{self.name} {text!r}: expected true or false")
            return text.lower() == "true"
        if not self.many:
            return self._known(text)
        entries = (each.strip() for each in text.split(","))
        chosen = {self._known(self.parse(each) if self.parse else each) for each in entries}
        return tuple(each for each in self.values if each in chosen) or tuple(sorted(chosen))

    def described(self) -> dict[str, str]:
        """Return name, values and text, for people."""
        flag = isinstance(self.default, bool)
        values = "true or false" if flag else _listed(self.values) or "text"
        default = ",".join(self.default) if isinstance(self.default, tuple) else self.default
        given = str(default).lower() if flag else str(default or "")
        text = f"{self.text} By default {given}." if given else self.text
        return {"name": self.name, "values": values, "text": text.strip()}

    def _known(self, text: str) -> str:
        if self.values and text not in self.values:
            several = ", several separated by commas" if self.many else ""
            raise OptionError(
                f"{self.name} {text!r}: expected one of {_listed(self.values)}{several}"
            )
        return text


def parse_options(
    dataset: str, known: Sequence[Option], given: Mapping[str, str]
) -> dict[str, Any]:
    """Return the value of each option of a dataset; OptionError lists those that are known."""
    names = {each.name: each for each in known}
    for name in given:
        if name not in names:
            raise OptionError(f"option {name!r}: {dataset} knows {', '.join(names) or 'none'}")
    return {
        name: each.value(given[name]) if name in given else each.default
        for name, each in names.items()
    }


def _listed(values: Sequence[str]) -> str:
    if len(values) > LISTED:
        return f"{values[0]}, {values[1]} to {values[-1]} ({len(values)})"
    return ", ".join(values)
