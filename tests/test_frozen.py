"""A frozen value does what a frozen dataclass with slots does, and derives into one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from iobench.frozen import frozen

STANDARD = dataclass(frozen=True, slots=True)


def _classes(decorator: Callable[[Any], Any], named: Callable[[Any], Any]) -> tuple[Any, Any]:
    class Value:
        """A value."""

        place: int
        name: str = "none"
        found: list[int] = field(default_factory=list, metadata={"unit": "s"})
        noted: str = field(default="", compare=False, repr=False)
        _digest: list[str] = field(default_factory=list, init=False, compare=False)
        _length: int = field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "_length", len(self.name))

    class Named:
        """Fields by name."""

        size: int = 3
        way: tuple[str, ...]

    return decorator(Value), named(Named)


Ours, OursNamed = _classes(frozen, frozen(kw_only=True))
Theirs, TheirsNamed = _classes(STANDARD, dataclass(frozen=True, slots=True, kw_only=True))


@frozen
class Point:
    """One that can be pickled."""

    x: int
    y: tuple[float, ...] = ()


@frozen(eq=False)
class Alone:
    """Equal to itself."""

    x: int


@frozen
class Empty:
    """Without fields."""


MADE: list[Callable[[Any, Any], Any]] = [
    lambda value, _: value(1),
    lambda value, _: value(1, "two", [3], "noted"),
    lambda value, _: replace(value(1, noted="a"), name="five")._length,
    lambda value, _: value(1)._digest,
    lambda value, _: value(1) == value(1, noted="other"),
    lambda value, _: value(1) == value(2),
    lambda value, _: value(1) == (1, "none", []),
    lambda value, _: value(1).found is value(1).found,
    lambda value, _: dataclasses.asdict(value(1)),
    lambda value, _: [(each.name, each.default, dict(each.metadata)) for each in fields(value)],
    lambda value, _: (value.__match_args__, value.__slots__, value.__doc__),
    lambda value, _: list(inspect.signature(value).parameters),
    lambda value, _: copy.deepcopy(value(1, "two", [3])),
    lambda value, _: value(),
    lambda value, _: value(1, unknown=2),
    lambda value, _: value(1, _digest=[]),
    lambda value, _: setattr(value(1), "place", 2),
    lambda value, _: delattr(value(1), "place"),
    lambda value, _: hash(value(1)),
    lambda _, named: named(way=("a",)),
    lambda _, named: hash(named(way=("a",))) == hash(named(way=("a",), size=3)),
    lambda _, named: len({named(way=("a",)), named(way=("a",), size=3), named(way=())}),
    lambda _, named: named(1, ("a",)),
    lambda _, named: named(),
]


@pytest.mark.parametrize("number", range(len(MADE)))
def test_it_is_as_a_dataclass(number: int) -> None:
    assert _said(number, Ours, OursNamed) == _said(number, Theirs, TheirsNamed)


def _said(number: int, value: Any, named: Any) -> str:
    try:
        return repr(MADE[number](value, named))
    except (TypeError, AttributeError) as error:
        return f"{type(error)} {error}"


def test_it_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Point(1, (2.0,)))) == Point(1, (2.0,))


def test_without_equality_each_is_itself() -> None:
    one = Alone(1)
    assert one == one
    assert len({one, Alone(1)}) == 2


def test_one_without_fields() -> None:
    assert (Empty(), hash(Empty()), repr(Empty())) == (Empty(), hash(Empty()), "Empty()")


def test_what_derives_from_it_is_frozen() -> None:
    @dataclass(frozen=True, slots=True)
    class Far(Point):
        z: int = 0

    far = Far(1, z=2)
    assert repr(far).endswith("Far(x=1, y=(), z=2)")
    assert far == Far(1, z=2) != Far(1, z=3)
    for name in ("x", "z"):
        with pytest.raises(FrozenInstanceError):
            setattr(far, name, 5)
    with pytest.raises(TypeError, match="frozen"):
        dataclass(type("Loose", (Point,), {}))
