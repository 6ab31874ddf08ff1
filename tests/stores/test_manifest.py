from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.samples import SampleSpec, Variable
from iobench.stores.manifest import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    ShardFile,
    canonical_json,
    read_manifest,
    write_manifest,
)

SPEC = SampleSpec((Variable("x", (2,), "f4", ("x",), "K", "target", ("a", "b")),))
MANIFEST = Manifest(
    format="tfrecord",
    format_version=1,
    spec=SPEC,
    shards=(Shard(2, (ShardFile("a", 100, 7), ShardFile("t/c.0", 10, 8))), Shard(1, ())),
    samples=(4, 5, 2),
    dataset="d",
    plan="p",
    options={"encoding": "float"},
    provenance={"dates": ("1998-01-01", "Größe"), "n": 3, "file": "latin1-\udcfc.nc"},
    normalisation={"epsilon": 0.1},
    metadata=(ShardFile("t/zarr.json", 20, 8),),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def changed(**changes):
    """The values of a manifest, some of them another."""
    return MANIFEST.to_dict() | changes


def write(path, values):
    (path / MANIFEST_NAME).write_text(json.dumps(values))


def test_written_manifest_is_read_equal(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST_NAME]
    assert [file.name for file in MANIFEST.files] == ["a", "t/c.0", "t/zarr.json"]
    assert MANIFEST.nbytes == 110


@given(st.dictionaries(st.text(), JSON))
def test_any_facts_round_trip(facts):
    manifest = Manifest("f", 1, SPEC, (), (), provenance=facts)
    assert Manifest.from_dict(json.loads(canonical_json(manifest.to_dict()))) == manifest


def test_what_is_no_store_of_this_version_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(StoreError, match="not a finished store"):
        read_manifest(tmp_path)
    for version in (1, "2", None):
        write(tmp_path, {"manifest_version": version, "format": "zarr"})
        with pytest.raises(StoreError, match=f"iobench convert SOURCE {tmp_path} --to 'zarr'"):
            read_manifest(tmp_path)


@pytest.mark.parametrize("fact", [float("nan"), object(), {1, 2}])
def test_what_json_cannot_say_is_refused(fact):
    with pytest.raises(StoreError, match="plain JSON"):
        Manifest("f", 1, SPEC, (), (), provenance={"fact": fact})


OUTSIDE = [
    "../a", "/etc/passwd", "a/../../b", "a/..", "./a", "a/./b", "a//b", "a/", "..", ".", "", "a\\b",
    "a/b\\c", "a\0b", "a\nb", "x" * 300, "a/" * 8 + "b", 7,
]  # fmt: skip


@pytest.mark.parametrize("place", ["shard", "metadata"])
def test_file_outside_the_folder_is_refused(tmp_path, place):
    for name in OUTSIDE:
        file = {"name": name, "nbytes": 100, "crc32c": 7}
        inside = {"name": "a", "nbytes": 100, "crc32c": 7}
        shard = {"n_samples": 3, "files": [file if place == "shard" else inside]}
        write(tmp_path, changed(shards=[shard], metadata=[file] if place == "metadata" else []))
        with pytest.raises(StoreError, match=MANIFEST_NAME):
            read_manifest(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_samples": 4},
        {"n_samples": -1},
        {"n_samples": True},
        {"samples": [[0, 10**15]]},
        {"samples": [[0, 2], [-1, 1]]},
        {"samples": "abc"},
        {"shards": [{"n_samples": 10**15, "files": []}], "n_samples": 10**15},
        {"shards": [{"n_samples": 3, "files": [{"name": "a", "nbytes": 1.5, "crc32c": 0}]}]},
        {"shards": [{"n_samples": 3, "files": [{"name": "a", "nbytes": 9, "crc32c": 1 << 32}]}]},
        {"shards": 3 * [{"n_samples": 1, "files": [{"name": "a", "nbytes": 9, "crc32c": 0}]}]},
        {"variables": []},
        {"variables": [{"name": "x"}]},
        {"variables": [SPEC["x"].to_dict() | {"dtype": "O"}]},
        {"variables": [SPEC["x"].to_dict() | {"dtype": "no dtype"}]},
        {"variables": [SPEC["x"].to_dict() | {"shape": [-2]}]},
        {"variables": [SPEC["x"].to_dict() | {"shape": [1 << 62, 1 << 62], "dims": ["a", "b"]}]},
        {"options": {"encoding": 1}},
        {"sample_grid": [["time", 2]]},
        {"provenance": 5},
        {"format": None},
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes):
    write(tmp_path, changed(**changes))
    with pytest.raises(StoreError, match="not a manifest of a store"):
        read_manifest(tmp_path)


def test_what_is_no_manifest_at_all_is_refused(tmp_path):
    for text in (
        "", "[]", "{", "null", "[" * 100_000, '{"a":' * 100_000, "\ud800", "[" + "9" * 5000 + "]",
    ):  # fmt: skip
        (tmp_path / MANIFEST_NAME).write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(StoreError, match="not a manifest of a store"):
            read_manifest(tmp_path)
