"""The formats of a profile, each ready to be loaded; missing probes are converted first."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.cpus import available_cpus
from iobench.datasets import stopwatch
from iobench.errors import StoreClaimedError, StoreError
from iobench.loaders.pipeline import Pipeline, dataset_pipeline, store_pipeline
from iobench.profiling.config import DEFAULT_BATCHES
from iobench.registry import SOURCE, find_converter, find_format
from iobench.stores import probe_samples, store_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.profiling.config import RunConfig, Screen
    from iobench.profiling.source import Source

__all__ = ["Prepared", "prepare"]

PROBE_NBYTES: Final = 2 << 30
PROBE_SHARD_NBYTES: Final = 256 << 20
"""What an interrupted probe loses at the most."""
PROBE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """One format, ready to be measured."""

    format: str
    pipeline: Pipeline
    samples: tuple[int, ...]
    files: list[Path]
    store: dict[str, Any] | None


def prepare(config: RunConfig, source: Source, batch_size: int, screen: Screen) -> list[Prepared]:
    """Return the pipeline of each format, over the same samples; probes are converted first."""
    wanted = len(source.index)
    if config.epochs is None and (config.batches or config.duration_s is None):
        wanted = min(wanted, (config.batches or DEFAULT_BATCHES) * batch_size)
    samples = probe_samples(len(source.index), wanted)
    prepared = {
        name: _prepare_store(name, config, source, samples, screen)
        for name in config.formats
        if name != SOURCE
    }
    if SOURCE in config.formats:
        # The original files are read for the samples the stores hold, no more and no fewer.
        held = [one.samples for one in prepared.values()]
        chosen = min(held, key=len) if held else sorted(samples)
        pipeline = dataset_pipeline(source.dataset, source.index, chosen)
        prepared[SOURCE] = Prepared(SOURCE, pipeline, tuple(chosen), source.files, None)
    return [prepared[name] for name in config.formats]


def _prepare_store(
    name: str, config: RunConfig, source: Source, samples: list[int], screen: Screen
) -> Prepared:
    fmt = find_format(name)
    arguments: dict[str, Any] = {
        "samples": samples,  # in an order of which every beginning is spread over the files
        "files": source.files,
        "shard_nbytes": PROBE_SHARD_NBYTES,
        "limit_nbytes": PROBE_NBYTES,
        "limit_s": PROBE_S,
    }
    path = source.place / "stores" / store_name(source.dataset, source.index, fmt, **arguments)
    wrote = False
    watch = stopwatch()
    with _removable(path), screen.progress(f"converting a probe to {name}") as move:

        def advance(done: int, total: int) -> None:
            nonlocal wrote
            wrote = True  # not set where the store is there, or another process makes it
            move(done, total)

        store = find_converter()(
            source.dataset,
            source.index,
            fmt,
            path,
            workers=available_cpus(),
            progress=advance,
            notice=screen.note,
            **arguments,
        )
    facts = {
        "path": str(path),
        "probe": len(store) < len(source.index),
        "reused": not wrote,
        "convert_s": watch() if wrote else None,
        "nbytes": store.manifest.nbytes,
        "n_samples": len(store),
        "n_samples_all": len(source.index),
    }
    files = [path / file.name for shard in store.manifest.shards for file in shard.files]
    return Prepared(name, store_pipeline(store), store.manifest.samples, files, facts)


@contextmanager
def _removable(path: Path) -> Iterator[None]:
    """Say of a damaged store how to be rid of it, so that the same command makes it anew."""
    try:
        yield
    except StoreClaimedError:
        raise
    except StoreError as error:
        raise StoreError(f"{error} ('iobench cache --remove {path}' removes it)") from error
