from __future__ import annotations

import builtins
from importlib import metadata

import pytest

from iobench import errors
from iobench.extras import install_command


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n.endswith("Error")])
def test_every_error_is_drawn_in_the_tree_and_fits_its_builtin(name: str) -> None:
    drawn = next(line for line in (errors.__doc__ or "").splitlines() if f" {name} " in f"{line} ")
    kind = getattr(errors, name)
    assert issubclass(kind, errors.IobenchError)
    if "(" in drawn:
        assert issubclass(kind, getattr(builtins, drawn.split("(")[1].split(")")[0]))


def test_what_to_install_is_said_without_metadata_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nvidia-ml-py" in install_command("gpu")

    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert install_command("gpu") == "pip install 'iobench[gpu]'"
