"""Digests of batches: of names, dtypes, shapes and values alone; their files, whatever happened."""

from __future__ import annotations

import dataclasses
import logging
import os
import resource
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xxhash", reason="digests need the extra 'digest'")
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from iobench.errors import MissingExtraError, ProfileError
from iobench.recording import digests
from iobench.recording.digests import (
    DigestLog,
    UndigestibleError,
    batch_digest,
    read_digests,
)
from iobench.recording.run_directory import RunDirectory
from iobench.recording.session import RUN_DIGESTS, record

Pair = namedtuple("Pair", "x y")
BATCH = {"field": np.arange(12, dtype="<f4").reshape(3, 4), "level": 3, "name": "t2m"}
DTYPES = st.sampled_from(["<f4", ">f4", "<i8", "u1", "?", "<c16", "<M8[s]", "S3", "<f2"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(max_dims=3, max_side=4))
)


@dataclasses.dataclass
class Held:
    x: Any
    y: Any


@settings(max_examples=25, deadline=None)
@given(ARRAYS)
def test_how_an_array_is_held_makes_no_difference(array: np.ndarray) -> None:
    wider = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wider[..., ::2] = array
    swapped = array.astype(array.dtype.newbyteorder())
    same = (array, wider[..., ::2], np.asfortranarray(array), swapped)
    assert len({batch_digest(each) for each in same}) == 1


@pytest.mark.parametrize(
    "other",
    [
        BATCH | {"field": BATCH["field"].astype("<f8")},
        BATCH | {"field": BATCH["field"].reshape(4, 3)},
        BATCH | {"field": BATCH["field"] + np.float32(1e-6)},
        BATCH | {"field": BATCH["field"][::-1]},
        BATCH | {"level": 3.0},
        BATCH | {"level": np.int32(3)},
        BATCH | {"level": True},
        BATCH | {"name": b"t2m"},
        BATCH | {"name": None},
        {"field": BATCH["field"], "levels": 3, "name": "t2m"},
        {"field": BATCH["field"], "level": 3},
        [BATCH["field"], 3, "t2m"],
    ],
    ids=range(12),
)
def test_any_difference_shows(other: Any) -> None:
    assert batch_digest(other) != batch_digest(BATCH)


def test_order_of_names_and_kind_of_container_do_not_matter_but_order_of_items_does() -> None:
    assert batch_digest(OrderedDict(reversed(BATCH.items()))) == batch_digest(BATCH)
    assert batch_digest((1, 2)) == batch_digest([1, 2]) == batch_digest(Pair(1, 2))
    assert batch_digest([1, 2]) != batch_digest([2, 1]) != batch_digest([[2], 1])
    assert batch_digest(Held(1, 2)) == batch_digest({"x": 1, "y": 2})
    assert batch_digest(["ab", "c"]) != batch_digest(["a", "bc"])
    assert len({batch_digest({name: 0}) for name in (1, 1.0, True, "1")}) == 4
    assert batch_digest(3) == batch_digest(np.asarray(3))
    texts = np.array(["a", "bcd"])
    assert batch_digest(texts) == batch_digest(texts.astype("U9")) == batch_digest(["a", "bcd"])
    assert batch_digest(texts) != batch_digest(texts.astype("S3"))


def test_the_digest_is_fixed() -> None:
    # Runs are compared across versions: whoever changes this raises the version of the files.
    assert batch_digest(BATCH).hex() == "1746d8e3e844c88fb0da22ba5eda71b3"


def test_what_a_mask_covers_is_no_value_and_the_mask_is() -> None:
    values, mask = np.arange(6.0).reshape(2, 3), np.array([[0, 1, 0], [0, 0, 1]], dtype=bool)
    digest = batch_digest(np.ma.masked_array(values, mask))
    assert digest == batch_digest(np.ma.masked_array(np.where(mask, np.nan, values), mask))
    assert digest != batch_digest(np.ma.masked_array(values, ~mask)) != batch_digest(values)


def test_what_cannot_be_read_is_refused() -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise ValueError("closed file")

    endless: list[Any] = []
    endless.append(endless)
    for value in (
        object(), {"x": {1, 2}}, [lambda: None], Broken(), endless,
        np.zeros(2, [("x", "f4"), ("y", "O")]),
    ):  # fmt: skip
        with pytest.raises(UndigestibleError):
            batch_digest(value)


def test_tensors_are_the_arrays_they_hold() -> None:
    torch = pytest.importorskip("torch", reason="of its tensors")
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    tensor = torch.from_numpy(array.copy())
    same = [array, tensor, tensor.T.contiguous().T, tensor.clone().requires_grad_()]
    assert len({batch_digest(each) for each in same}) == 1
    conjugate = torch.tensor([1 + 2j]).conj()
    assert batch_digest(conjugate) == batch_digest(np.array([1 - 2j], dtype="<c8"))
    for refused in (tensor.to_sparse(), tensor.to("meta")):
        with pytest.raises(UndigestibleError):
            batch_digest(refused)
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert batch_digest(ones.view(torch.int16)) != batch_digest(ones)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy's bfloat16")
    assert batch_digest(ones) == batch_digest(np.ones(3, dtype=ml_dtypes.bfloat16))


def written(run: Path, *, rank: int = 0) -> Path:
    log = DigestLog(run, rank=rank)
    log.add(7, 2, BATCH, 3)
    log.add(8, 2, BATCH, 1)
    log.close()
    (path,) = (run / "digests").glob("*.bin")
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = written(tmp_path, rank=3)
    rows = read_digests(tmp_path)
    digest = int.from_bytes(batch_digest(BATCH))
    assert rows == ((3, 7, 3, digest), (3, 8, 1, digest))
    assert read_digests(tmp_path / "none") is None
    # A row that was cut off, and a file that is none.
    (tmp_path / "digests" / "other.bin").write_bytes(b"x")
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    assert read_digests(tmp_path) == rows[:1]
    path.write_bytes(data[:8] + b"\x09" + data[9:])
    with pytest.raises(ProfileError, match="of version 9, expected 2"):
        read_digests(tmp_path)


def test_a_fork_writes_a_file_of_its_own(tmp_path: Path) -> None:
    log = DigestLog(tmp_path)
    log.add(0, 0, BATCH, 3)
    pid = os.fork()
    if not pid:
        log.add(1, 0, BATCH, 3)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    log.add(2, 0, BATCH, 3)
    log.close()
    assert len(list((tmp_path / "digests").glob("*.bin"))) == 2
    assert sorted(each.batch for each in read_digests(tmp_path)) == [0, 1, 2]


def test_a_full_disk_and_what_cannot_be_read_are_one_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = DigestLog(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING):
        for batch, value in enumerate(({"x": 1}, {"x": object()}, {"x": object()})):
            log.add(batch, 0, value, 2)
        assert len(caplog.records) == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            log.add(3, 0, BATCH, 3)
            log.add(4, 0, BATCH, 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.close()
    assert len(caplog.records) == 2
    assert [each.digest is not None for each in read_digests(tmp_path)] == [True, False, False]


def test_without_xxhash_the_line_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests.load_xxhash.cache_clear()
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(MissingExtraError, match="pip install 'xxhash>="):
        DigestLog(tmp_path)


def test_processes_that_are_started_write_digests_too(tmp_path: Path) -> None:
    with record(tmp_path / "run", digests=True) as recording:
        assert recording.digests
        assert os.environ[RUN_DIGESTS]
        for framework, notes in (
            ("torch", []), ("tensorflow", ["digests: of PyTorch's loaders only"]),
        ):  # fmt: skip
            assert recording.add_loader(framework, "Loader", "x").unseen == notes
    assert RUN_DIGESTS not in os.environ
    assert RunDirectory.open(tmp_path / "run").config["digests"] is True
