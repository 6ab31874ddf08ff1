"""What ``iobench convert`` does, without the command line: prepare, convert, say what it took."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.conversion.forecast import (
    ConversionForecast,
    conversion_plan,
    known_source,
    known_target,
    measure_probe,
    plan,
)
from iobench.conversion.preparing import PreparedConversion, prepare
from iobench.datasets.setup_processes import stopwatch
from iobench.registry import find_converter
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.sources.request import Screen
    from iobench.stores.contract import Notice, Store

STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOutcome:
    """What a conversion made and what it took."""

    path: Path  # the store
    dataset: str
    format: str  # names
    is_finished: bool  # whether all parts of the store are there
    stand_in: bool  # whether the source is a stand-in
    was_finished: bool  # whether it was there already, so that nothing was done
    n_samples: int  # samples of the store
    in_nbytes: int
    out_nbytes: int  # bytes read from the source by this run, and bytes of the finished store
    wrote_nbytes: int  # bytes this run wrote of it
    wall_s: float  # seconds of this run
    stages_s: Mapping[str, float]
    stages_nbytes: Mapping[str, int]  # seconds and bytes by stage, summed over threads
    memory_nbytes: int  # what samples that are being made were held to
    # resident memory at its most, and before the conversion began; None where the system does not
    # tell
    peak_rss_nbytes: int | None
    idle_rss_nbytes: int | None
    # shards that were there already, and that this run wrote
    n_resumed: int
    n_written: int
    # of each shard the samples, and name, size and CRC-32C of its files
    shards: tuple[Mapping[str, Any], ...]
    # what fewer bits did to each variable, as in `Manifest.lossy`; empty where none has fewer
    lossy: Mapping[str, Any]

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes written over wall time; None where nothing was written."""
        if not self.wrote_nbytes or self.wall_s <= 0:
            return None
        return self.wrote_nbytes / self.wall_s

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "path": str(self.path), "bytes_per_s": self.bytes_per_s}


def forecast(
    request: ConvertRequest, screen: Screen
) -> tuple[PreparedConversion, ConversionForecast]:
    """Return what a conversion would take, from a short probe; nothing is left behind."""
    prepared = prepare(request, screen)
    memory_nbytes = prepared.memory_nbytes(request)
    planned = conversion_plan(prepared, request, memory_nbytes, screen)
    source = known_source(prepared, planned, request, memory_nbytes)
    target = known_target(prepared, planned, request, memory_nbytes)
    probe = measure_probe(prepared, request, memory_nbytes, screen)
    return prepared, plan(source, target, probe)


def run(request: ConvertRequest, screen: Screen) -> ConversionOutcome:
    """Convert what the request asks for, or what is missing of it."""
    prepared = prepare(request, screen)
    tally = Tally()
    idle_rss, watch = resident_nbytes("VmRSS"), stopwatch()
    memory_nbytes = prepared.memory_nbytes(request)
    each = prepared.index.spec.nbytes
    title = f"{prepared.dataset.name} to {prepared.fmt.name}"
    lines = _ShardLines(tally, each, None if getattr(screen, "has_bars", True) else screen.note)
    with screen.progress(title, in_bytes=True) as move:

        def progress(done: int, total: int) -> None:
            move(done * each, total * each)
            lines.look(done, total)

        store = find_converter()(
            prepared.store_request(request, memory_nbytes),
            progress=progress,
            notice=screen.note,
            tally=tally,
        )
    try:
        return _outcome(
            prepared, request, store, tally, memory_nbytes, wall_s=watch(), idle_rss=idle_rss
        )
    finally:
        if store is not None:
            store.close()


class _ShardLines:
    """Says a line for each shard that was written, where no bar moves; one a second at the most."""

    def __init__(self, tally: Tally, sample_nbytes: int, say: Notice | None) -> None:
        self._tally, self._sample_nbytes, self._say = tally, sample_nbytes, say
        self._watch, self._before = stopwatch(), -1
        self._said_s, self._n_said = 0.0, 0

    def look(self, done: int, total: int) -> None:
        """Say what was written since the last line, at which rate, and what is left."""
        seconds, n_written = self._watch(), self._tally.n_written
        if self._before < 0:
            self._before = done
        if self._say is None or n_written == self._n_said or seconds - self._said_s < 1:
            return
        self._said_s, self._n_said = seconds, n_written
        rate = (done - self._before) * self._sample_nbytes / seconds
        left = f", {(total - done) * self._sample_nbytes / rate:.0f} s left" if rate else ""
        self._say(
            f"{n_written} shards written: {done} of {total} samples, {rate / 1e6:.3g} MB/s{left}"
        )


def _outcome(
    prepared: PreparedConversion,
    request: ConvertRequest,
    store: Store | None,
    tally: Tally,
    memory_nbytes: int,
    *,
    wall_s: float,
    idle_rss: int | None,
) -> ConversionOutcome:
    manifest = None if store is None else store.manifest
    stages_s, stages_nbytes = tally.seconds, tally.nbytes
    read = next((name for name in stages_nbytes if name.split("+")[0] == "read"), "read")
    return ConversionOutcome(
        path=request.out.absolute(),
        dataset=prepared.dataset.name,
        format=prepared.fmt.name,
        is_finished=manifest is not None,
        stand_in=prepared.source.stand_in,
        was_finished=not (tally.n_written or tally.n_resumed),
        n_samples=0 if store is None else len(store),
        in_nbytes=stages_nbytes.get(read, 0),
        out_nbytes=0 if manifest is None else manifest.nbytes,
        wrote_nbytes=stages_nbytes.get("write", 0),
        wall_s=wall_s,
        stages_s=stages_s,
        stages_nbytes=stages_nbytes,
        memory_nbytes=memory_nbytes,
        peak_rss_nbytes=resident_nbytes("VmHWM"),
        idle_rss_nbytes=idle_rss,
        n_resumed=tally.n_resumed,
        n_written=tally.n_written,
        shards=tuple(shard.to_dict() for shard in manifest.shards) if manifest else (),
        lossy=dict(manifest.lossy) if manifest else {},
    )


def resident_nbytes(key: str) -> int | None:
    """Return ``VmRSS`` (now) or ``VmHWM`` (the most so far) of this process, in bytes."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith(f"{key}:")]
    return int(found[0][1]) * 1024 if found else None
