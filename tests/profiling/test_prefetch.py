"""How far loaders of a profile may be ahead."""

from __future__ import annotations

import pytest

from iobench.errors import OptionError
from iobench.profiling.config import RunConfig
from iobench.recording.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("workers", "prefetch", "ahead"), [(2, None, 2), (2, 5, 5), (0, None, 0), (0, 5, 0)]
)
def test_each_worker_is_ahead_by_what_was_asked(workers, prefetch, ahead) -> None:
    config = RunConfig(targets=("x.nc",), workers=workers, prefetch=prefetch)
    assert config.n_ahead == ahead


def test_less_than_one_batch_ahead_is_refused() -> None:
    with pytest.raises(OptionError, match="--prefetch 0"):
        RunConfig(targets=("x.nc",), prefetch=0)


@pytest.mark.long
def test_a_profile_runs_ahead_as_asked(tmp_path, iobench_here, store_dir) -> None:
    pytest.importorskip("eccodes", reason="reads GRIB: pip install 'iobench[grib]'")
    done = iobench_here(
        "profile", "maelstrom-ens10", "--tiny", "--store-dir", store_dir, "--format", "numpy",
        "--workers", "1", "--prefetch", "3", "--batches", "8", "--compute", "1ms",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = RunDirectory.open(tmp_path / "run").config
    assert (told["prefetch"], told["threads"]) == (3, 1)
    assert told["n_samples_all"] >= told["n_samples"] > 0
    assert told["files_nbytes"] > 0
