from __future__ import annotations

import builtins

import pytest

from iobench import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_drawn_in_the_tree_and_fits_its_builtin(name: str) -> None:
    drawn = next(line for line in (errors.__doc__ or "").splitlines() if f" {name} " in f"{line} ")
    kind = getattr(errors, name)
    assert issubclass(kind, errors.IobenchError)
    if "(" in drawn:
        assert issubclass(kind, getattr(builtins, drawn.split("(")[1].split(")")[0]))
