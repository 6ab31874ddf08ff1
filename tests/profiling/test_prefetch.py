"""How far loaders of a profile may be ahead."""

from __future__ import annotations

import pytest

from iobench.errors import OptionError
from iobench.profiling.config import RunConfig


@pytest.mark.parametrize(
    ("workers", "prefetch", "ahead"), [(2, None, 2), (2, 5, 5), (0, None, 0), (0, 5, 0)]
)
def test_each_worker_is_ahead_by_what_was_asked(workers, prefetch, ahead) -> None:
    config = RunConfig(targets=("x.nc",), workers=workers, prefetch=prefetch)
    assert config.n_ahead == ahead


def test_less_than_one_batch_ahead_is_refused() -> None:
    with pytest.raises(OptionError, match="--prefetch 0"):
        RunConfig(targets=("x.nc",), prefetch=0)
