"""``iobench verify`` through the command line: what is as written, and what is named where not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from iobench.chunks.decoded_chunks import reopen_files
from iobench.cli import main
from iobench.testing import flip_bit

DATA = Path(__file__).parents[1] / "data"
MEMBERS = "era5-levels-members.grib"


@pytest.fixture
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Convert a GRIB file beside the store to two shards."""
    reopen_files()
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5" / MEMBERS, tmp_path)

    def convert(to: str, *more: str) -> Path:
        arguments = ("--to", to, "--sample-dim", "time", "--shard-size", "2500000", *more)
        assert main(["convert", MEMBERS, "out", *arguments]) == 0
        capsys.readouterr()
        return tmp_path / "out"

    return convert


@pytest.fixture(params=["numpy", "tfrecord", "zarr"])
def store(request, converted) -> Path:
    if request.param == "zarr":
        pytest.importorskip("zarr", reason="the format zarr writes with it")
    return converted(request.param)


@pytest.fixture
def verified(capsys: pytest.CaptureFixture[str]):
    """Verify in this process; return the JSON it prints."""

    def run(*arguments: str | Path) -> dict:
        code = main(["verify", *map(str, arguments), "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return run


@pytest.fixture
def wrong(capsys: pytest.CaptureFixture[str]):
    """Verify what is not as it should be; return the one line that is said."""

    def run(*arguments: str | Path) -> str:
        assert main(["verify", *map(str, arguments)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        line = said.err.splitlines()[-1]
        assert line.startswith("iobench: ")
        return line

    return run


def shards(store: Path) -> list[Path]:
    """Return the files of the second shard's arrays."""
    manifest = json.loads((store / "iobench.json").read_text())
    return [store / file["name"] for file in manifest["shards"][1]["files"]]


@pytest.mark.quick_cases(2)
def test_a_store_as_written_and_as_its_source_has_it(store: Path, verified) -> None:
    found = verified(store)
    assert (found["as_written"], found["comparison"], found["n_samples"]) == (True, None, 4)
    assert found["nbytes"] > 4_600_000
    assert len(found["not_covered"]) == 1
    found = verified(store, "--against", MEMBERS)
    assert (found["against"], found["not_covered"]) == (MEMBERS, [])
    assert (found["comparison"]["n_compared"], found["comparison"]["same"]) == (4, True)
    assert verified(store, "--against", MEMBERS, "--share", "0.5")["comparison"]["n_compared"] == 2


@pytest.mark.quick_cases(3)
def test_one_bit_is_found_and_named(store: Path, wrong, capsys) -> None:
    file = max(shards(store), key=lambda path: path.stat().st_size)
    flip_bit(file, file.stat().st_size // 3)
    line = wrong(store)
    assert line.startswith(f"iobench: {file}: ")
    assert "shard 1" in line
    assert main(["verify", str(store), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["as_written"], f"iobench: {said['error']}") == (False, line)


@pytest.mark.quick_cases(2)
def test_a_flipped_bit_of_the_manifest_is_found(store: Path, wrong) -> None:
    file = store / "iobench.json"
    text = file.read_bytes()
    for place in ('"provenance"', '"fingerprint"', '"plan"', '"samples"', '\n  "crc32c": '):
        start = text.rindex(place.encode()) + len(place)
        flip_bit(file, next(n for n in range(start, len(text)) if text[n : n + 1].isalnum()))
        assert wrong(store).startswith(f"iobench: {file}: "), place
        file.write_bytes(text)


@pytest.mark.quick_cases(2)
def test_another_source_is_found_and_named(store: Path, wrong, tmp_path: Path) -> None:
    message = bytearray((tmp_path / MEMBERS).read_bytes())
    message[-5000] ^= 0x10  # a packed value of the last field
    (tmp_path / "other.grib").write_bytes(message)
    line = wrong(store, "--against", "other.grib")
    assert "sample 3" in line
    assert "1 of 4" in line
    assert "out: z" in wrong(store, "--against", DATA / "era5" / "test4.nc")


@pytest.mark.parametrize(
    "request_",
    [
        [],
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ({"stage": 5}, {"options": ["a"]}, {"variables": 1})
        ),
    ],
)  # fmt: skip
def test_a_request_edited_by_hand_is_refused(converted, wrong, request_) -> None:
    file = converted("numpy") / "iobench.json"
    manifest = json.loads(file.read_text())
    manifest["provenance"]["request"] = request_
    file.write_text(json.dumps(manifest))
    wrong("out", "--against", MEMBERS)
