"""TFRecord stores through tf.data, as ``iobench profile --framework tensorflow`` reads them."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its reader is what is tested")
from number_stores import SPEC, expected_batch, write_numbers

from iobench.errors import OptionError, StoreError, WorkerError
from iobench.loaders.contract import IN_THREADS
from iobench.loaders.ring.order import plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_reader import read_span_file
from iobench.samples import SampleSpec, Variable
from iobench.tensorflow.measured_pipelines import TFExampleLoader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)
N, SIZE = 30, 4


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "numbers"
    write_numbers(folder, N, "tfrecord")
    return folder / "shard-00000.tfrecord"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "spans", role="consumer") as recorder:
        yield recorder


def test_batches_have_the_samples_of_the_store_pass_after_pass(
    shard: Path, recorder: Recorder
) -> None:
    plan = plan_batches(N, SIZE)
    with TFExampleLoader([shard], SPEC, SIZE, threads=2, recorder=recorder) as loader:
        found = [*loader.batches(itertools.islice(plan, 5))]
        loader.after_round()
        found += loader.batches(itertools.islice(plan, 5))
    assert [batch.planned.batch for batch in found] == [*range(10)]
    for place, batch in enumerate(found):
        numbers = [(place * SIZE + each) % N for each in range(SIZE)]
        expected = expected_batch(numbers)
        assert list(batch.arrays) == list(expected)
        for name, array in expected.items():
            assert batch.arrays[name].dtype == array.dtype
            assert np.array_equal(batch.arrays[name], array), name
        assert batch.worker == IN_THREADS


def test_its_threads_are_seen_and_every_batch_is_explained(shard: Path, recorder: Recorder) -> None:
    with TFExampleLoader([shard], SPEC, SIZE, threads=2, recorder=recorder) as loader:
        assert len([*loader.batches(itertools.islice(plan_batches(N, SIZE), 12))]) == 12
    assert recorder.path is not None
    file = read_span_file(recorder.path)
    by_kind = {
        kind: {file.strings[label] for label in file.spans["label"][file.spans["kind"] == kind]}
        for kind in (Kind.READ, Kind.DECODE)
    }
    assert by_kind[Kind.READ] == {"TFRecord"}
    assert "ParseExampleV2" in by_kind[Kind.DECODE]
    assert set(range(12)) <= set(file.spans["batch"].tolist())
    assert len(file.thread_names) > 1


def test_bad_input_gets_one_line(shard: Path, tmp_path: Path, recorder: Recorder) -> None:
    with pytest.raises(OptionError, match="threads 0"):
        TFExampleLoader([shard], SPEC, SIZE, threads=0, recorder=recorder)
    other = SampleSpec((Variable("absent", (2,), "<f4", ("x",)),))
    loader = TFExampleLoader([shard], other, 2, threads=1, recorder=recorder)
    with loader, pytest.raises(StoreError, match="'absent'"):
        next(loader.batches(plan_batches(N, 2)))
    cut = tmp_path / "cut.tfrecord"
    cut.write_bytes(shard.read_bytes()[:-5])
    loader = TFExampleLoader([cut], SPEC, N, threads=1, recorder=recorder)
    with loader, pytest.raises(WorkerError, match=r"tf\.data: "):
        list(loader.batches(itertools.islice(plan_batches(N, N), 2)))
    with pytest.raises(WorkerError, match="closed"):
        loader.batches([])
