"""What a run's configuration may hold where figures depend on it; the rest is for its readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["check_configuration"]

MOST: Final = 2**40


def check_configuration(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a ``run.json`` whose values cannot be; what it does not say is unknown.

    Raises
    ------
    ProfileError
    """
    for name, (sound, expected) in EXPECTED.items():
        value = config.get(name)
        if value is not None and not sound(value):
            raise ProfileError(
                f"{path / 'run.json'}: {name} is {str(value)[:40]!r}, expected {expected}; "
                "put it right, or measure again"
            )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_costs(value: object) -> bool:
    return isinstance(value, dict) and all(
        each is None or (type(each) in (int, float) and 0 <= each <= MOST)
        for each in value.values()
    )


COUNT: Final = (_is_count, "a number from 0 on")
EXPECTED: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "workers": COUNT,
    "prefetch": COUNT,
    "threads": COUNT,
    "batch_size": COUNT,
    "sample_nbytes": COUNT,
    "n_samples": COUNT,
    "world_size": COUNT,
    "keep_nbytes": (lambda value: type(value) is int and value > 0, "a number of bytes"),
    "expected_workers": (_is_texts, "a list of names"),
    "unit_costs": (_is_costs, "nanoseconds by name"),
    "kind": (lambda value: isinstance(value, str), "a word"),
    "cold_known": (lambda value: isinstance(value, bool), "true or false"),
    "position": (lambda value: type(value) in (int, float), "a number"),
}
