"""How the application loads today, beside which iobench's own reader is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.datasets import PluginBaseline, UpstreamBaseline, pipelines_of, stopwatch
from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.datasets import Baseline
    from iobench.profiling.config import RunConfig
    from iobench.sources import Screen, Source

__all__ = ["open_baselines"]


def open_baselines(
    config: RunConfig, source: Source, screen: Screen, *, batch_size: int | None
) -> Mapping[str, tuple[Baseline, dict[str, float]]]:
    """Return each baseline that ``--pipeline`` names, with the seconds its set-up took.

    Raises
    ------
    OptionError
        If the dataset has none of that name.
    """
    found = {}
    for name in config.pipelines:
        if name == "own":
            continue
        watch = stopwatch()
        with screen.progress(f"preparing {name}") as move:
            source.locator.progress = move
            baseline = _open(name, source, batch_size)
        setup_s = dict(baseline.setup_s)
        setup_s["opening"] = max(watch() - sum(setup_s.values()), 0.0)
        found[name] = (baseline, setup_s)
    return found


def _open(name: str, source: Source, batch_size: int | None) -> Baseline:
    dataset, files, index = source.dataset, source.files, source.index
    if name == "upstream" and isinstance(dataset, UpstreamBaseline):
        return dataset.upstream(files, index, source.locator, batch_size=batch_size)
    if name == "climetlab" and isinstance(dataset, PluginBaseline):
        return dataset.through_plugin(files, index, source.locator, batch_size=batch_size)
    raise OptionError(
        f"--pipeline {name}: {dataset.name} has no such pipeline; it has "
        f"{' and '.join(pipelines_of(dataset))}"
    )
