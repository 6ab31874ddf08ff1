"""Pipelines of tf.data whose functions sleep, as their trace shows them."""

from __future__ import annotations

import os
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its pipelines are what is replayed")
import tensorflow as tf

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.recording.session import record
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.runs.reading import open_profile
from iobench.tensorflow import hooks, instrument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from iobench.analysis.run import RankRun

pytestmark = [pytest.mark.timeout(180)]
N_BATCHES, BATCH = 24, 4
READ_S, PARSE_S = 0.006, 0.012


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    hooks.uninstall()


def asleep(seconds: float) -> Callable[[Any], Any]:
    def sleep(number: Any) -> Any:
        time.sleep(seconds)
        return number

    return sleep


def pipeline(
    *, read_s: float = READ_S, calls: int | None = 2, pool: int = 4, ahead: int = 2
) -> Any:
    def read(number: Any) -> Any:
        return tf.numpy_function(asleep(read_s), [number], tf.int64)

    def parse(number: Any) -> Any:
        return tf.numpy_function(asleep(PARSE_S), [number], tf.int64)

    options = tf.data.Options()
    options.threading.private_threadpool_size = pool
    data = tf.data.Dataset.range(BATCH * N_BATCHES).map(read).map(parse, num_parallel_calls=calls)
    return data.batch(BATCH).prefetch(ahead).with_options(options)


def recorded(data: Any, folder: Path, n_epochs: int = 1, detail: str = "auto") -> RankRun:
    with record(folder, detail=detail):
        seen = instrument(data)
        for _ in range(n_epochs):
            for _ in seen:
                time.sleep(0.001)
    return Run(open_profile(folder)).of_rank()


def busy_ns(run: RankRun, operation: str) -> int:
    (row,) = [row for row in run.exposure.whole.stages if f":{operation}/" in row.stage]
    return row.busy_ns


def test_work_of_traced_batches_has_the_name_of_its_operation(tmp_path: Path) -> None:
    run = recorded(pipeline(), tmp_path / "run", n_epochs=2)
    n_least = N_BATCHES - 8
    assert busy_ns(run, "Map") >= 0.99e9 * n_least * BATCH * READ_S
    assert busy_ns(run, "MapAndBatch") >= 0.99e9 * n_least * BATCH * PARSE_S
    assert busy_ns(run, "MapAndBatch") > 1.5 * busy_ns(run, "Map")
    # Nothing that was traced is left without a name.
    whole = run.exposure.whole
    gap = sum(row.exposed_ns for row in whole.stages if row.stage == "worker_gap")
    assert gap < 0.1 * whole.wait_ns


def test_no_gain_is_predicted_and_the_reason_is_said(tmp_path: Path) -> None:
    rank = recorded(pipeline(calls=1), tmp_path / "run")
    (run,) = runs = recorded_runs(rank)
    assert run.rule is LoaderRule.OPAQUE
    assert run.reason.startswith("tf.data pipelines are not replayed")
    document = report_document([Run(rank)])
    text = " ".join(TerminalRenderer(StringIO()).render(document).split())
    assert f"Replay error unknown ({run.reason}), so no gain is predicted." in text
    advice = advice_of([loading_of(rank, runs)])
    assert advice is not None
    assert (advice.changes, advice.to_measure) == ((), ())
    assert advice.sentence == f"No advice. Nothing is predicted: {run.reason}."


def test_that_no_gpu_is_timed_is_said_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(folder: Path) -> str:
        return " ".join(recorded(pipeline(), folder).facts[0].loaders[0].unseen)

    assert "GPUs" not in unseen(tmp_path / "without")
    devices = tf.config.list_physical_devices
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: [kind] if kind == "GPU" else devices()
    )
    assert "GPUs: TensorFlow's tracer is used for the host only" in unseen(tmp_path / "with")


def test_what_is_interleaved_is_traced_too(tmp_path: Path) -> None:
    def rows(number: Any) -> Any:
        found = tf.data.Dataset.range(48)
        return found.map(lambda row: tf.numpy_function(asleep(READ_S), [row], tf.int64))

    files = tf.data.Dataset.range(BATCH * N_BATCHES // 48)
    data = files.interleave(rows, cycle_length=2, num_parallel_calls=2).batch(BATCH).prefetch(1)
    whole = recorded(data, tmp_path / "run").exposure.whole
    busy = sum(row.busy_ns for row in whole.stages if row.stage.startswith("opaque:"))
    assert busy >= 0.8e9 * (N_BATCHES - 8) * BATCH * READ_S
