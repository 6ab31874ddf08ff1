"""Values that do not change: dataclasses, made in a quarter of the time.

``dataclass(frozen=True, slots=True)`` compiles six functions for each class, which took a third of
the CPU time of ``iobench report``. Here only ``__init__`` is compiled; the rest are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, /, *, eq: bool = True, kw_only: bool = False) -> Any:
    """Make a dataclass that is frozen and has slots, of a class that derives from none.

    Parameters
    ----------
    eq : bool
        Whether two with equal fields are equal; else each is equal to itself alone.
    kw_only : bool
        Whether its fields are given by name alone.
    """
    if cls is None:
        return lambda cls: _made(cls, eq, kw_only)
    return _made(cls, eq, kw_only)


def _made(cls: type, eq: bool, kw_only: bool) -> type:
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    made.__dataclass_params__.frozen = True  # what derives from it has to be
    made.__init__ = _init(made)
    for name, method in (_SHARED | _COMPARED if eq else _SHARED).items():
        if name not in cls.__dict__:
            setattr(made, name, method)
    if eq:
        names = [each.name for each in fields(made) if each.compare]
        made._compared = attrgetter(*names) if names else lambda *_: ()
    return made  # type: ignore[no-any-return]


def _init(made: type) -> Callable[..., None]:
    """Return what takes its fields, in the words of Python: nothing else is as fast when called."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_unset": MISSING}
    by_place, by_name, lines = ["self"], list[str](), list[str]()
    for each in fields(made):
        name, default, value = each.name, "", each.name
        if each.default_factory is not MISSING:
            known[f"_make_{name}"] = each.default_factory
            default, value = "=_unset", f"_make_{name}() if {name} is _unset else {name}"
            value = value if each.init else f"_make_{name}()"
        elif each.default is not MISSING:
            known[f"_default_{name}"] = each.default
            default = f"=_default_{name}"
            value = value if each.init else f"_default_{name}"
        elif not each.init:
            continue
        lines.append(f"_set(self, {name!r}, {value})")
        if each.init:
            (by_name if each.kw_only else by_place).append(f"{name}{default}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    taken = ", ".join([*by_place, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({taken}):\n " + "\n ".join(lines or ["pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {each.name: each.type for each in fields(made) if each.init}
    init.__annotations__["return"] = None
    return init


def _repr(self: Any) -> str:
    told = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


_SHARED: Final = {
    "__repr__": _repr,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
_COMPARED: Final = {"__eq__": _equal, "__hash__": _hash}
