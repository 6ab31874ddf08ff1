"""What ``iobench convert`` does, without the command line: prepare, convert, say what it took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.conversion.preparing import prepare
from iobench.datasets.setup_processes import stopwatch
from iobench.registry import find_converter
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from iobench.conversion.convert_request import ConvertRequest
    from iobench.sources.request import Screen
    from iobench.stores.contract import Notice

STATUS: Final = Path("/proc/self/status")


def run(request: ConvertRequest, screen: Screen) -> dict[str, Any]:
    """Convert what the request asks for, or what is missing of it; return what it took."""
    source, asked = prepare(request, screen)
    tally = Tally()
    idle_rss, watch = resident_nbytes("VmRSS"), stopwatch()
    each = asked.index.spec.nbytes
    title = f"{asked.dataset.name} to {asked.fmt.name}"
    lines = _ShardLines(tally, each, None if getattr(screen, "has_bars", True) else screen.note)
    with screen.progress(title, in_bytes=True) as move:

        def progress(done: int, total: int) -> None:
            move(done * each, total * each)
            lines.look(done, total)

        store = find_converter()(asked, progress=progress, notice=screen.note, tally=tally)
    wall_s, wrote_nbytes = watch(), tally.nbytes.get("write", 0)
    outcome = {
        "path": str(asked.path),
        "dataset": asked.dataset.name,
        "format": asked.fmt.name,
        "stand_in": source.stand_in,  # whether the source is one
        "is_finished": store is not None,  # other parts may be missing
        "n_samples": 0,
        "out_nbytes": 0,
        "shards": [],
        "lossy": {},
        "was_finished": not (tally.n_written or tally.n_resumed),  # so that nothing was done
        "in_nbytes": source_nbytes(tally),
        "wrote_nbytes": wrote_nbytes,
        "wall_s": wall_s,
        "bytes_per_s": wrote_nbytes / wall_s if wrote_nbytes and wall_s > 0 else None,
        "stages_s": tally.seconds,  # summed over threads, as the bytes are
        "stages_nbytes": dict(tally.nbytes),
        "n_resumed": tally.n_resumed,  # shards that were there already
        "n_written": tally.n_written,
        "memory_nbytes": asked.memory_nbytes,  # what samples that are being made were held to
        # resident memory at its most, and before the conversion began
        "peak_rss_nbytes": resident_nbytes("VmHWM"),
        "idle_rss_nbytes": idle_rss,
    }
    if store is not None:
        outcome |= {
            "n_samples": len(store),
            "out_nbytes": store.manifest.nbytes,
            "shards": msgspec.to_builtins(store.manifest.shards),
            "lossy": dict(store.manifest.lossy),
        }
        store.close()
    return outcome


def source_nbytes(tally: Tally) -> int:
    """Return the bytes read from the source, by themselves or together with other steps."""
    return sum(each for name, each in tally.nbytes.items() if name.split("+")[0] == "read")


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


def resident_nbytes(key: str) -> int | None:
    """Return ``VmRSS`` (now) or ``VmHWM`` (the most so far) of this process, in bytes."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    result = [line.split() for line in lines if line.startswith(f"{key}:")]
    return int(result[0][1]) * 1024 if result else None
