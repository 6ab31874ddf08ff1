"""``iobench doctor`` looks for what is optional, and says the line that installs the rest."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

import pytest

from iobench.cli import main

Installed = Callable[..., list[dict[str, str]]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Installed:
    """Return what the command says where iobench requires this, and that is installed."""

    def say(requires: list[str], installed: dict[str, str]) -> Any:
        def version(name: str) -> str:
            if name not in installed:
                raise importlib.metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
        monkeypatch.setattr(importlib.metadata, "version", version)
        assert main(["doctor", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["installed"]

    return say


@pytest.mark.parametrize(
    ("installed", "state"),
    [
        ({"eccodes": "2.42.0+x"}, "eccodes 2.42.0+x"),
        ({"eccodes": "2.50"}, "eccodes 2.50"),
        ({"eccodes": "2.41.9.post1"}, "eccodes 2.41.9.post1, expected >=2.42"),
        ({}, "no eccodes"),
    ],
)
def test_an_extra_is_there_or_has_the_line_that_installs_it(
    doctor: Installed, installed: dict[str, str], state: str
) -> None:
    found = doctor(["numpy>=1", "eccodes>=2.42; extra == 'grib'"], installed)[0]
    install = "" if state.count(",") == 0 and "no " not in state else "pip install 'eccodes>=2.42'"
    assert found == {"name": "grib", "state": state, "install": install}


def test_all_extras_plugins_and_darshan_are_listed(
    doctor: Installed, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "libdarshan.so").write_bytes(b"")
    monkeypatch.setenv("DARSHAN_LIB", str(tmp_path))
    requires = ["a; extra == 'one'", "b; extra == 'two'", "a; extra == 'all'"]
    found = {each["name"]: each for each in doctor(requires, {"a": "1"})}
    assert [*found][:2] == ["one", "two"]
    assert "all" not in found
    plugin = found["climetlab-maelstrom-ens10"]
    assert plugin["install"] == "pip install --no-deps climetlab-maelstrom-ens10==0.1.1"
    assert found["Darshan's runtime"]["state"] == str(tmp_path / "libdarshan.so")
