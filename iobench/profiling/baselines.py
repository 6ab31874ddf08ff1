"""What is measured beside iobench's own reader: a plain loop, or the real plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.datasets.baseline import PluginBaseline, UpstreamBaseline, pipelines_of
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import FileFormatError, MissingExtraError, OptionError
from iobench.files.urls import URL
from iobench.profiling.config import AUTO_PIPELINES
from iobench.registry import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.datasets.baseline import Baseline
    from iobench.profiling.config import RunConfig
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen


def open_baselines(
    config: RunConfig, source: Source, screen: Screen, *, batch_size: int | None
) -> Mapping[str, tuple[Baseline, dict[str, float]]]:
    """Return each baseline that ``--pipeline`` names, with the seconds its set-up took.

    With ``auto`` a plain loop over users' own files, where it reads the first sample; why it does
    not is said.
    """
    found = {}
    auto = config.pipelines == AUTO_PIPELINES
    for name in _of_own_files(config, source) if auto else config.pipelines:
        if name == "own":
            continue
        watch = stopwatch()
        try:
            with screen.progress(f"preparing {name}"):
                baseline = _open(name, source, batch_size)
        except (FileFormatError, MissingExtraError) as error:
            if not auto:
                raise
            screen.note(f"iobench's own reader is measured alone: {error}")
            continue
        found[name] = (baseline, {"opening": watch() - baseline.trial_s})
    return found


def _of_own_files(config: RunConfig, source: Source) -> tuple[str, ...]:
    """Return what is measured beside our reader where nobody said."""
    told_otherwise = (
        SOURCE not in config.formats
        or config.window is not None
        or config.cache == "cold"  # one would warm it for the other
        or len(config.frameworks) > 1
    )
    if told_otherwise or not getattr(source.dataset, "has_plain_loop", False):
        return ()
    return ("upstream",)


def _open(name: str, source: Source, batch_size: int | None) -> Baseline:
    dataset, files, index = source.dataset, source.files, source.index
    behind_url = next((file for file in files if isinstance(file, URL)), None)
    if behind_url is not None and name in pipelines_of(dataset):
        raise OptionError(
            f"--pipeline {name}: reads files of this machine through libraries that know no other, "
            f"and {behind_url} lies behind a URL; leave it out, or copy the files here"
        )
    if name == "upstream" and isinstance(dataset, UpstreamBaseline):
        return dataset.upstream(files, index, batch_size=batch_size)
    if name == "climetlab" and isinstance(dataset, PluginBaseline):
        return dataset.through_plugin(files, index)
    raise OptionError(
        f"--pipeline {name}: {dataset.name} has no such pipeline; it has "
        f"{' and '.join(pipelines_of(dataset))}"
    )
