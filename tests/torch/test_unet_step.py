"""The benchmark of a real U-Net runs, all contenders of it, and prints the table of D2.3."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the U-Net is torch's")
pytest.importorskip("eccodes", reason="the stand-in of ENS-10 is GRIB")
pytest.importorskip("iobench_maelstrom", reason="ENS-10 is a plugin's")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "unet_step.py"

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("unet_step", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unet_step"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [(91, 180), (8, 8), (9, 15)])
def test_the_model_gives_a_field_of_the_grid(script: Any, size: tuple[int, int]) -> None:
    model = script.UNet(3, (4, 8, 16))
    assert model(torch.zeros(2, 3, *size)).shape == (2, 1, *size)


def test_the_model_is_about_as_large_as_published(script: Any) -> None:
    """0.634 M parameters; its exact layers are not published with them."""
    model = script.UNet(14, script.FILTERS)
    assert 0.4e6 < sum(values.numel() for values in model.parameters()) < 0.7e6


@pytest.mark.long
def test_all_contenders_are_trained_and_timed(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--tiny", "--epochs", "1", "--samples", "2", "--workers", "0", "--device", "cpu"]
    script.main([*given, "--folder", str(tmp_path / "data"), "--json", str(tmp_path / "figures")])
    shown = capsys.readouterr().out
    assert "D2.3 table 4, PyTorch, NumPy" in shown
    assert "0.10577" in shown
    figures = json.loads((tmp_path / "figures").read_text())["contenders"]
    assert list(figures) == list(script.CONTENDERS)
    for found in figures.values():
        assert set(found["rows"]) == set(script.ROWS)
        for least, mean, median, most, stdev in found["rows"].values():
            assert 0 < least <= median <= most
            assert least <= mean <= most
            assert stdev >= 0
        assert found["rows"]["batch"][0] >= found["rows"]["forward"][0]
        assert 0 < found["exposed"] < 1
