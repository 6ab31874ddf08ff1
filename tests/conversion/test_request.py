"""What a conversion is asked for: sizes, and requests that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from iobench.conversion.convert_request import ConvertRequest
from iobench.errors import OptionError, UnknownNameError
from iobench.sizes import parse_nbytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1GiB", 1 << 30), ("256mib", 256 << 20), ("1.5 GB", 1_500_000_000), ("4096", 4096)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_nbytes("--memory", text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1XB", "big", "1e9", "nan", "9" * 30, "1 G i B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(OptionError, match=r"--memory .*expected a size"):
        parse_nbytes("--memory", text)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"to": "numpi"}, UnknownNameError, "did you mean numpy"),
        ({"to": "source"}, OptionError, "there is already"),
        ({"stage": "decode"}, UnknownNameError, "did you mean decoded"),
        ({"stage": "raw"}, UnknownNameError, "decoded, preprocessed"),
        ({"workers": 0}, OptionError, "--workers 0"),
    ],
)
def test_requests_that_cannot_be(given, error, words: str) -> None:
    with pytest.raises(error, match=words):
        ConvertRequest(**{"targets": ("a",), "to": "numpy", "out": Path("o"), **given})


def test_what_a_manifest_keeps_names_no_path() -> None:
    request = ConvertRequest(
        targets=("/some/where.nc",), to="numpy", out=Path("/else/where"), data_dir=Path("/d"),
        sample_dim="time", variables=("t",), workers=3, memory_nbytes=5,
    )  # fmt: skip
    assert request.to_dict() == {
        "sample_dim": "time", "variables": ["t"], "stage": "preprocessed",
    }  # fmt: skip
    assert "seed" not in replace(request, seed=3).to_dict()
    stand_in = replace(request, seed=3, tiny=True).to_dict()
    assert (stand_in["seed"], stand_in["tiny"]) == (3, True)
