"""tf.data whose stages take known times: exact sums, and parts as the reference has them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its pipelines are what is timed")
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
from reference import reference, without_cpu_waits

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile
from iobench.tensorflow import instrument

pytestmark = pytest.mark.timeout(120)
MILLISECONDS = (4, 2, 1)
N_BATCHES = 24


def slow(milliseconds: float) -> Callable[[Any], Any]:
    def function(number: Any) -> Any:
        time.sleep(milliseconds / 1e3)
        return number

    return lambda number: tf.numpy_function(function, [number], tf.int64)


@pytest.mark.parametrize("threads", [None, 1])
def test_what_is_waited_for(tmp_path: Path, threads: int | None) -> None:
    data = tf.data.Dataset.range(N_BATCHES)
    for milliseconds in MILLISECONDS:
        data = data.map(slow(milliseconds), num_parallel_calls=threads)
    data = data.prefetch(2) if threads else data
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    with record(tmp_path / "run"):
        for _ in instrument(data.with_options(options)):
            pass
    profile = without_cpu_waits(open_profile(tmp_path / "run"))
    whole = exposure(profile).whole
    waits = profile.spans[profile.spans["kind"] == Kind.WAIT]
    waited = int((waits["end_ns"] - waits["start_ns"]).sum())
    assert sum(whole.exposed_ns.values()) == whole.wait_ns == waited
    expected = reference(profile)
    assert sum(expected.values()) == waited
    for stage in expected | whole.exposed_ns:
        apart = abs(expected.get(stage, 0) - whole.exposed_ns.get(stage, 0))
        assert apart <= 0.01 * expected.get(stage, 0) + len(waits), stage
