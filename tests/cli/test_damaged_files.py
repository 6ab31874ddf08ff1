"""Damaged files end a profile with one line that says where, and never with fewer samples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.registry import find_dataset

TF = "maelstrom-radiation-tf"
EXAMPLE_NBYTES = 20_576
# One of each container: TFRecord, GRIB, classic NetCDF, NetCDF-4.
FILES = {
    TF: ("triplecloud0.0.tfrecord", rf"at byte {255 * EXAMPLE_NBYTES}: .*cut short"),
    "maelstrom-ens10": ("output.sfc.20180104", r"message at offset \d+ is cut short"),
    "maelstrom-power": ("sfc_20190102_00.nc", r"cut short: .*ends at byte \d+"),
    "maelstrom-downscaling-tier1": ("downscaling_tier1_2020-05.nc", r"truncated file: eof = \d+"),
}


@pytest.fixture
def copied(tiny_root, tmp_path: Path):
    """Return a function that copies a tiny stand-in's files, as if they were a user's."""
    pytest.importorskip("netCDF4", reason="stand-ins are written with netCDF4")
    pytest.importorskip("eccodes", reason="stand-ins of ENS-10 are written with ecCodes")

    def copy(name: str) -> Path:
        root = tiny_root(find_dataset(name))
        folder = tmp_path / "data"
        folder.mkdir()
        for path in root.rglob("*"):
            if path.is_file() and "url" in path.parts:
                shutil.copyfile(path, folder / path.name)
        return folder

    return copy


@pytest.fixture
def last_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Profile a whole pass, which has to fail; return the line that is said."""

    def run(name: str, folder: Path, *arguments: str) -> str:
        code = main(
            [
                "profile", name, "--data-dir", str(folder), "--epochs", "1", "--workers", "1",
                "--compute", "none", "--store-dir", str(tmp_path / "stores"),
                "--out", str(tmp_path / "run"), *arguments,
            ]
        )  # fmt: skip
        said = capsys.readouterr()
        assert code == 1
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err.splitlines()[-1]

    return run


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_is_named_with_the_place(copied, last_line, name):
    file, message = FILES[name]
    folder = copied(name)
    path = folder / file
    with path.open("rb+") as stream:
        stream.truncate(path.stat().st_size - 5000)
    line = last_line(name, folder)
    assert line.startswith(f"iobench: {path}")
    assert re.search(message, line)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--framework", "torch"), ("--format", "numpy"), ("--pipeline", "upstream")],
    ids=" ".join,
)
def test_one_flipped_bit_of_an_example_is_named_with_its_place(copied, last_line, arguments):
    if "torch" in arguments:
        pytest.importorskip("torch", reason="its DataLoader runs the workers")
    if "upstream" in arguments:
        pytest.importorskip("tensorflow", reason="the application reads with TensorFlow")
    folder = copied(TF)
    path, at = folder / "triplecloud0.0.tfrecord", 7 * EXAMPLE_NBYTES
    content = bytearray(path.read_bytes())
    content[at + 5000] ^= 4
    path.write_bytes(content)
    line = last_line(TF, folder, *arguments)
    assert line.startswith(f"iobench: {path}")
    # TensorFlow counts from where the data begin, after 12 bytes of length.
    assert f"record at {at + 12}" in line if "upstream" in arguments else f"byte {at}:" in line
