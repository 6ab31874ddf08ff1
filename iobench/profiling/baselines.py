"""What is measured beside iobench's own reader: a plain loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from iobench.datasets.baseline import UpstreamBaseline, pipelines_of
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


class BaselineSetup(msgspec.Struct, frozen=True):
    """A baseline, ready to run."""

    baseline: Baseline
    setup_s: float


def open_baselines(
    config: RunConfig, source: Source, screen: Screen, *, batch_size: int | None
) -> Mapping[str, BaselineSetup]:
    """Return each baseline that ``--pipeline`` names."""
    result = {}
    auto = config.pipelines == AUTO_PIPELINES
    for name in _for_own_files(config, source) if auto else config.pipelines:
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
        else:
            result[name] = BaselineSetup(baseline, watch())
    return result


def _for_own_files(config: RunConfig, source: Source) -> tuple[str, ...]:
    is_alone = (
        SOURCE not in config.formats
        or config.window is not None
        or config.cache == "cold"  # one would warm it for the other
        or len(config.frameworks) > 1
        or not getattr(source.dataset, "has_plain_loop", False)
    )
    return () if is_alone else ("upstream",)


def _open(name: str, source: Source, batch_size: int | None) -> Baseline:
    dataset, files, index = source.dataset, source.files, source.index
    url = next((file for file in files if isinstance(file, URL)), None)
    if url is not None and name in pipelines_of(dataset):
        raise OptionError(
            f"--pipeline {name}: reads local files only, and {url} is a URL; copy the files here, "
            "or use --pipeline own"
        )
    if name == "upstream" and isinstance(dataset, UpstreamBaseline):
        return dataset.upstream(files, index, batch_size=batch_size)
    raise OptionError(
        f"--pipeline {name}: {dataset.name} has no such pipeline; it has "
        f"{' and '.join(pipelines_of(dataset))}"
    )
