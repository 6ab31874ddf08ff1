"""Pipelines of tf.data whose functions sleep, replayed from their trace."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its pipelines are what is replayed")
import tensorflow as tf

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.replay import replay, replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.profiles.reading import open_profile
from iobench.recording.kinds import stage_title
from iobench.recording.session import record
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.subjects.advice.advising import advice_of
from iobench.subjects.advice.measured import measured_rank
from iobench.subjects.replay.figures import payoffs
from iobench.tensorflow import hooks, instrument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from iobench.analysis.replay.loader_run import RecordedRun

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


def recorded(data: Any, folder: Path, n_epochs: int = 1) -> RecordedRun:
    with record(folder):
        seen = instrument(data)
        for _ in range(n_epochs):
            for _ in seen:
                time.sleep(0.001)
    (run,) = recorded_runs(Run(open_profile(folder)).of_rank())
    return run


def batch_ns(run: RecordedRun) -> float:
    return run.wall_ns / len(run)


def test_a_pipeline_is_replayed_from_the_batches_that_were_traced(tmp_path: Path) -> None:
    run = recorded(pipeline(), tmp_path / "run", n_epochs=2)
    assert run.rule is LoaderRule.PIPELINE
    assert run.is_part
    assert 5 <= len(run) <= N_BATCHES - 4
    assert abs(replay_error(run)) < 0.15
    slept = {"read": BATCH * READ_S, "parse": BATCH * PARSE_S}
    for name, seconds in slept.items():
        (column,) = [at for at, stage in enumerate(run.stages) if f":{name}/" in stage]
        assert (run.work_ns[:, column] >= 0.99e9 * seconds).all()  # of each batch all of it
    shape = run.pipeline
    assert shape is not None
    assert (shape.pool, shape.in_python) == (4, True)
    first = shape.groups[0]
    assert (first.function, first.threads, first.units) == ("parse", 2, BATCH)
    assert [each.function for each in first.inside] == ["read"]
    # Nothing that was traced is left without a name.
    whole = exposure(open_profile(tmp_path / "run")).whole
    gap = sum(row.exposed_ns for row in whole.stages if row.stage == "worker_gap")
    assert gap < 0.1 * whole.wait_ns


@pytest.mark.long
def test_what_a_change_gains_is_what_it_gains_when_it_is_made(tmp_path: Path) -> None:
    scripts = {
        "now": pipeline(),
        "half": pipeline(read_s=READ_S / 2),
        "calls": pipeline(calls=4),
    }
    fastest: dict[str, RecordedRun] = {}
    for turn in range(3):  # whatever else the machine does only makes them slower
        for name, data in scripts.items():
            run = recorded(data, tmp_path / f"{name}-{turn}")
            if name not in fastest or batch_ns(run) < batch_ns(fastest[name]):
                fastest[name] = run
    run = fastest["now"]
    shape = run.pipeline
    assert shape is not None
    (reading,) = [stage for stage in run.stages if ":read/" in stage]
    now = replay(run).wall_ns

    def predicted(change: Change | None = None, **fields: Any) -> float:
        return replay(replace(run, **fields), change or Change()).wall_ns / now

    expected = {
        "half": predicted(Change(stage_factors={reading: 0.5})),
        "calls": predicted(pipeline=shape.with_calls(0, "parse", 4)),
    }
    for name, share in expected.items():
        obtained = batch_ns(fastest[name]) / batch_ns(run)
        print(name, share, obtained)
        assert share == pytest.approx(obtained, abs=0.2)
    assert expected["calls"] < 0.85 < predicted(Change(prefetch=8))
    # As many calls as there are threads for them already: nothing more to gain from them.
    short = replace(shape, pool=2)
    assert predicted(pipeline=short.with_calls(0, "parse", 4)) >= 0.95 * predicted(pipeline=short)


def test_reports_and_advice_name_the_calls_of_tf_data(tmp_path: Path) -> None:
    run = recorded(pipeline(pool=0, calls=1), tmp_path / "run", n_epochs=2)
    rank = Run(open_profile(tmp_path / "run")).of_rank()
    text = " ".join(
        TerminalRenderer(StringIO()).render(report_document([Run(rank.profile)])).split()
    )
    found = payoffs(run)
    assert f"over {len(run)} batches that were traced" in text
    assert "Estimated, not measured by batch" not in text
    assert found.stages[0].stage.startswith("opaque:parse/")
    assert f"Halving {stage_title(found.stages[0].stage)} would save" in text
    advice = advice_of([measured_rank(rank, [run])])
    assert advice is not None
    told = [each.candidate.title for each in (*advice.changes, *advice.to_measure)]
    assert told[0].startswith("num_parallel_calls=")  # before what is only known at most
    assert told[0] in text.partition("What to try next")[2]
    assert any(
        title.startswith("num_parallel_calls=") and "map of parse" in title for title in told
    )
    assert not any("worker" in title for title in told)
    lines = [line for each in (*advice.changes, *advice.to_measure) for line in each.commands]
    assert any("num_parallel_calls=" in line for line in lines)


def test_that_no_gpu_is_timed_is_said_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(folder: Path) -> str:
        recorded(pipeline(), folder)
        return " ".join(open_profile(folder).facts[0].loaders[0].unseen)

    assert "GPUs" not in unseen(tmp_path / "without")
    devices = tf.config.list_physical_devices
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: [kind] if kind == "GPU" else devices()
    )
    assert "GPUs: TensorFlow's tracer is used for the host only" in unseen(tmp_path / "with")


def test_what_is_interleaved_is_replayed_too(tmp_path: Path) -> None:
    def rows(number: Any) -> Any:
        found = tf.data.Dataset.range(48)
        return found.map(lambda row: tf.numpy_function(asleep(READ_S), [row], tf.int64))

    options = tf.data.Options()
    options.threading.private_threadpool_size = 4
    files = tf.data.Dataset.range(BATCH * N_BATCHES // 48)
    data = files.interleave(rows, cycle_length=2, num_parallel_calls=2).batch(BATCH).prefetch(1)
    run = recorded(data.with_options(options), tmp_path / "run")
    assert run.rule is LoaderRule.PIPELINE
    assert run.pipeline is not None
    assert run.pipeline.groups[0].operation == "ParallelInterleave"
    assert run.pipeline.groups[0].threads == 2
    assert abs(replay_error(run)) < 0.3
    slept = BATCH * READ_S * 1e9
    assert run.work_ns.sum(axis=1).mean() >= 0.8 * slept


def test_a_pipeline_that_was_not_traced_is_not_replayed(tmp_path: Path) -> None:
    with record(tmp_path / "run", detail="batch"):
        for _ in instrument(pipeline()):
            pass
    (run,) = recorded_runs(Run(open_profile(tmp_path / "run")).of_rank())
    assert run.rule is LoaderRule.OPAQUE
    assert "were not seen" in run.reason
