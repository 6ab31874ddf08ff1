"""``iobench verify`` through the command line: what is as written, and what is named where not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from iobench.chunks.decoded_chunks import reopen_files
from iobench.cli import main
from iobench.stores.places import MARK_NAME, make_item
from iobench.testing import flip_bit

DATA = Path(__file__).parents[1] / "data"
MEMBERS = "era5-levels-members.grib"
KEYS = {
    "kind", "as_written", "path", "dataset", "format", "n_samples", "n_shards", "n_files",
    "nbytes", "against", "comparison", "wall_s", "not_covered",
}  # fmt: skip


@pytest.fixture(params=["numpy", "tfrecord", "zarr"])
def store(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Path:
    """A store of two shards made of a GRIB file beside it."""
    if request.param == "zarr":
        pytest.importorskip("zarr", reason="the format zarr writes with it")
    reopen_files()
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5" / MEMBERS, tmp_path)
    arguments = ("--to", request.param, "--sample-dim", "time", "--shard-size", "2500000")
    assert main(["convert", MEMBERS, "out", *arguments]) == 0
    capsys.readouterr()
    return tmp_path / "out"


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
        return said.err.splitlines()[-1]

    return run


def shards(store: Path) -> list[Path]:
    """Return the files of the second shard's arrays."""
    manifest = json.loads((store / "iobench.json").read_text())
    return [store / file["name"] for file in manifest["shards"][1]["files"]]


@pytest.mark.quick_cases(3)
def test_a_store_as_written(store: Path, verified, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(store)
    assert set(found) == KEYS
    assert (found["as_written"], found["comparison"]) == (True, None)
    assert (found["n_samples"], found["n_shards"]) == (4, 2)
    assert found["nbytes"] > 4_600_000
    assert main(["verify", str(store)]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "out: as written"
    assert last == "  unchecked  whether samples are as their source has them (--against SOURCE)"


@pytest.mark.quick_cases(2)
def test_a_store_as_its_source_has_it(store: Path, verified) -> None:
    found = verified(store, "--against", MEMBERS)
    assert found["against"] == MEMBERS
    assert found["comparison"]["n_compared"] == 4
    assert found["comparison"]["same"]
    assert found["not_covered"] == []
    assert verified(store, "--against", MEMBERS, "--share", "0.5")["comparison"]["n_compared"] == 2


@pytest.mark.quick_cases(3)
def test_one_bit_is_found_and_named(store: Path, wrong, capsys) -> None:
    file = max(shards(store), key=lambda path: path.stat().st_size)
    flip_bit(file, file.stat().st_size // 3)
    line = wrong(store)
    assert line.startswith(f"iobench: {file}: checksum of shard 1, sample ")
    assert "array" in line
    assert main(["verify", str(store), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["as_written"] is False
    assert f"iobench: {said['error']}" == line


@pytest.mark.quick_cases(2)
def test_a_flipped_bit_of_the_manifest_is_found(store: Path, wrong) -> None:
    file = store / "iobench.json"
    text = file.read_bytes()
    for place in ('"provenance"', '"fingerprint"', '"plan"', '"samples"', '\n  "crc32c": '):
        start = text.rindex(place.encode()) + len(place)
        flip_bit(file, next(n for n in range(start, len(text)) if text[n : n + 1].isalnum()))
        line = wrong(store)
        assert line.startswith(f"iobench: {file}: "), place
        assert "its checksum is wrong" in line or "not a manifest" in line
        file.write_bytes(text)


@pytest.mark.quick_cases(0, thorough=1)
def test_a_flipped_bit_of_the_mark_is_found(store: Path, wrong) -> None:
    mark = make_item(store.with_name("marked"), kind="store", title="a title") / MARK_NAME
    shutil.copy(mark, store)
    flip_bit(store / MARK_NAME, mark.read_bytes().index(b"a title"))
    assert wrong(store).startswith(f"iobench: {store / MARK_NAME}: its checksum is wrong")


@pytest.mark.quick_cases(0, thorough=1)
def test_a_store_without_those_checksums_verifies_and_says_so(store: Path, verified) -> None:
    file = store / "iobench.json"
    values = json.loads(file.read_text())
    del values["crc32c"]
    file.write_text(json.dumps(values, sort_keys=True, indent=2) + "\n")
    (store / MARK_NAME).write_text('{"kind": "store", "title": "out"}')
    (store / "more.txt").write_text("nothing of ours")
    manifest, mark, other, _ = verified(store)["not_covered"]
    assert manifest.startswith("what iobench.json says of plan, options, provenance and sample")
    assert mark == ".iobench-item.json, likewise"
    assert other == "more.txt, which the manifest does not list"


@pytest.mark.quick_cases(2)
def test_another_source_is_found_and_named(store: Path, wrong, tmp_path: Path) -> None:
    message = bytearray((tmp_path / MEMBERS).read_bytes())
    message[-5000] ^= 0x10  # a packed value of the last field
    (tmp_path / "other.grib").write_bytes(message)
    line = wrong(store, "--against", "other.grib")
    assert "not as other.grib has it: shard 1, sample 3, which is 3 of the source" in line
    assert "1 value in 1 of 4 samples differs (t 1 by up to " in line


@pytest.mark.quick_cases(3)
def test_a_source_that_makes_other_samples_is_refused(store: Path, wrong) -> None:
    own = DATA / "era5" / "test4.nc"
    assert "out: z is <f4 (10, 2, 61, 120), the source makes" in wrong(store, "--against", own)


def test_a_manifest_edited_by_hand_reaches_nothing_outside(store: Path, wrong) -> None:
    file = store / "iobench.json"
    name = shards(store)[0].relative_to(store).as_posix()
    file.write_text(file.read_text().replace(f'"{name}"', f'"../{name}"'))
    line = wrong(store)
    assert f"{file}: not a manifest of a store" in line
    assert f"../{name}" in line


def test_what_is_no_store(tmp_path: Path, wrong) -> None:
    assert f"{tmp_path} is not a finished store: it has no iobench.json" in wrong(tmp_path)
    assert "nowhere is not a finished store" in wrong(tmp_path / "nowhere")


def test_a_pickle_in_place_of_an_array_is_not_run(
    tmp_path: Path, wrong, monkeypatch, capsys
) -> None:
    import numpy as np

    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5" / MEMBERS, tmp_path)
    assert main(["convert", MEMBERS, "out", "--to", "numpy", "--sample-dim", "time"]) == 0
    capsys.readouterr()
    manifest = json.loads(Path("out/iobench.json").read_text())
    [file] = [file for shard in manifest["shards"] for file in shard["files"]][:1]
    np.save(Path("out", file["name"]), np.array([print], dtype=object), allow_pickle=True)
    assert file["name"] in wrong("out")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--against", MEMBERS, "--share", "0"), "--share 0"),
        (("--share", "0.5"), "--against SOURCE"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, wrong, arguments, words: str) -> None:
    assert words in wrong(tmp_path, *arguments)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["decoded", "preprocessed"])
def test_a_stand_in_is_found_again(
    tmp_path: Path,
    store_dir: Path,
    verified,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(store_dir))
    out = tmp_path / "out"
    arguments = ("--to", "numpy", "--tiny", "--stage", stage)
    assert main(["convert", "maelstrom-ens10", str(out), *arguments, "--option", "dtype=pl"]) == 0
    capsys.readouterr()
    found = verified(out, "--against", "maelstrom-ens10")
    assert found["comparison"]["n_compared"] == found["n_samples"] > 0


@pytest.mark.thorough
def test_lossy_variables_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified, capsys
) -> None:
    reopen_files()
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5" / MEMBERS, tmp_path)
    arguments = (
        "--to", "numpy", "--sample-dim", "time", "--variables", "t", "--dtype", "float16",
    )  # fmt: skip
    assert main(["convert", MEMBERS, "out", *arguments]) == 0
    capsys.readouterr()
    found = verified("out", "--against", MEMBERS)
    assert found["n_samples"] == found["comparison"]["n_compared"] == 4
    off = found["comparison"]["largest"]["t"]
    assert 0 < off <= found["comparison"]["allowed"]["t"]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "told", [[], "raw", {"stage": 5}, {"patch": {"x": 2}}, {"options": ["a"]}, {"variables": 1}]
)
def test_a_request_edited_by_hand_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong, capsys, told
) -> None:
    reopen_files()
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5" / MEMBERS, tmp_path)
    assert main(["convert", MEMBERS, "out", "--to", "numpy", "--sample-dim", "time"]) == 0
    capsys.readouterr()
    manifest = json.loads(Path("out/iobench.json").read_text())
    manifest["provenance"]["request"] = told
    Path("out/iobench.json").write_text(json.dumps(manifest))
    assert wrong("out", "--against", MEMBERS).startswith("iobench: ")


@pytest.mark.parametrize("told", [{"patch": "y=3,x=2"}, {"stage": "raw"}])
def test_tiles_and_raw_bytes_of_earlier_versions_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong, capsys, told
) -> None:
    reopen_files()
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5" / MEMBERS, tmp_path)
    assert main(["convert", MEMBERS, "out", "--to", "numpy", "--sample-dim", "time"]) == 0
    capsys.readouterr()
    manifest = json.loads(Path("out/iobench.json").read_text())
    manifest["provenance"]["request"] |= told
    del manifest["crc32c"]
    Path("out/iobench.json").write_text(json.dumps(manifest))
    assert "convert the source again" in wrong("out", "--against", MEMBERS)
