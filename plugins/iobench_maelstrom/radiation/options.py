"""Options as upstream spells them, given as text: choices, numbers, yes or no."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from iobench.errors import OptionError

__all__ = ["HR_SCALES", "choose", "choose_many", "choose_numbers", "flag", "refuse_unknown"]

HR_SCALES = {"K s-1": 1, "K d-1": 24 * 3600}
"""Units of heating rates, and how many of them one kelvin per second is."""
TRUE, FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off", "none")


def refuse_unknown(options: Mapping[str, str], known: Sequence[str], *, dataset: str) -> None:
    """Raise OptionError if there is an option that is not among ``known``."""
    for name in options:
        if name not in known:
            raise OptionError(f"option {name!r}: {dataset} knows {', '.join(known)}")


def choose(options: Mapping[str, str], name: str, choices: Collection[str], default: str) -> str:
    """Return the value of an option that is one of ``choices``.

    Raises
    ------
    OptionError
        Listing the choices.
    """
    value = options.get(name, default)
    if value not in choices:
        raise OptionError(f"{name} {value!r}: expected one of {', '.join(choices)}")
    return value


def choose_many(
    options: Mapping[str, str], name: str, choices: Collection[str], default: Collection[str]
) -> tuple[str, ...]:
    """Return the values of a comma list, each one of ``choices``, in the order of these."""
    if name not in options:
        return tuple(default)
    values = [value.strip() for value in options[name].split(",")]
    for value in values:
        if value not in choices:
            raise OptionError(
                f"{name} {value!r}: expected, separated by commas, some of {', '.join(choices)}"
            )
    return tuple(choice for choice in choices if choice in values)


def choose_numbers(
    options: Mapping[str, str], name: str, choices: Sequence[int], default: Sequence[int]
) -> tuple[int, ...]:
    """Return the numbers of a comma list, each one of ``choices``."""
    texts = {str(number): number for number in choices}
    found = choose_many(options, name, texts, [str(number) for number in default])
    return tuple(texts[text] for text in found)


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return the value of an option that is true or false."""
    value = options.get(name, str(default)).lower()
    if value not in (*TRUE, *FALSE):
        raise OptionError(f"{name} {options[name]!r}: expected true or false")
    return value in TRUE
