"""What JSON calls the figures of a struct, said beside the figures themselves.

Nothing has to be said of most: a field has its own name, and what is unknown is null. A struct
says the others in ``JSON_KEYS``, by field; a dataclass in the metadata of its fields.
`iobench.report.json_walk` makes the document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Self, TypeVar, overload

S = TypeVar("S")
T = TypeVar("T")
KEYS: Final = "iobench.keys"
INSIDE: Final = "iobench.inside"
KEY_OF_ROW: Final = "iobench.key_of_row"


def key(*names: str) -> Mapping[str, Any]:
    """Return the metadata of a field that JSON calls otherwise."""
    return {KEYS: names}


HIDDEN: Final = key()
"""Metadata of a field that is no figure of the document."""
ITSELF: Final = ""
"""The key of the one field or figure that JSON has in place of a dataclass."""
INLINE: Final[Mapping[str, Any]] = {INSIDE: True}
"""Metadata of a field whose own figures stand beside those of the dataclass it is a field of."""


def keyed_by(row: str, *names: str) -> Mapping[str, Any]:
    """Return the metadata of a field of rows that are an object, by one field of theirs."""
    return {KEY_OF_ROW: row} | ({KEYS: names} if names else {})


class figure(Generic[T]):
    """A property that is a figure of the document as well: ``@figure`` in place of ``@property``.

    ``@figure.named("wait_ns")`` says what JSON calls it, where that is another name.
    """

    def __init__(self, function: Callable[[Any], T], metadata: Mapping[str, Any] | None = None):
        self.function = function
        self.metadata = metadata or {}
        self.__doc__ = function.__doc__

    @staticmethod
    def named(*names: str) -> Callable[[Callable[[Any], S]], figure[S]]:
        """Return the decorator of a property that JSON calls otherwise."""
        return lambda function: figure(function, key(*names))

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object, owner: type) -> Self | T:
        return self if instance is None else self.function(instance)
