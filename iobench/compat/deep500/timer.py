"""``Timer``: what regions of a training loop take, by key."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import math
import statistics
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from iobench.compat.deep500.timer_spans import RegionSpans
from iobench.errors import OptionError
from iobench.recording.clocks import now_ns
from iobench.recording.session import metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["TimeStats", "TimeType", "Timer"]


class TimeType(enum.Enum):
    """What a region is. Members of enums of your own, and texts, are keys as well."""

    EPOCH = 1
    BATCH = 2
    FORWARD = 3
    BACKWARD = 4
    COMM = 5
    IO = 6
    OTHER = 7
    ALL = 8
    """No key of a region."""


class TimeStats(NamedTuple):
    """Statistics of the times of a key, in seconds; ``stdev`` is not a number for a single one."""

    min: float
    mean: float
    median: float
    max: float
    stdev: float

    def __str__(self) -> str:
        return " ".join(f"{name}: {value:.5f}" for name, value in self._asdict().items())


class HostTimes:
    """The host's own time, in nanoseconds."""

    def start(self) -> int:
        """Return the time."""
        return now_ns()

    end = start

    def get_time(self, start: int, end: int) -> float:
        """Return the seconds between."""
        return (end - start) * 1e-9


@dataclasses.dataclass(slots=True)
class _Regions:
    """The regions of one key that are not turned into times yet."""

    name: str
    is_open: bool = False
    mark: Any = None
    since_ns: int = 0
    pairs: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)


class Timer:
    """Times regions of code by key: those of one key may not lie inside each other or overlap."""

    def __init__(self, timer_impl: Callable[[], Any] = HostTimes) -> None:
        self.timer_impl = timer_impl()
        self.times: dict[Hashable, list[float]] = {}
        self._regions: dict[Hashable, _Regions] = {}
        spans: RegionSpans | None = getattr(self.timer_impl, "spans", RegionSpans())
        self._spans = spans

    def start(self, key: Hashable) -> None:
        """Begin a region."""
        regions = self._of(key)
        if regions.is_open:
            raise RuntimeError(f"Detected nesting for timing region type {key}")
        regions.since_ns = now_ns()
        regions.mark = self.timer_impl.start()
        regions.is_open = True
        if self._spans is not None:
            self._spans.started(regions.name)

    def end(self, key: Hashable) -> None:
        """End the region of that key."""
        regions = self._of(key)
        if not regions.is_open:
            raise RuntimeError(f"Unbalanced end for timing region type {key}")
        pair = (regions.mark, self.timer_impl.end())
        end_ns = now_ns()
        regions.is_open = False
        regions.pairs.append(pair)
        if self._spans is not None:
            self._spans.ended(regions.name, regions.since_ns, end_ns, pair)

    def get_time(self, key: Hashable) -> list[float]:
        """Return the seconds of every region of that key; none if there was none."""
        self._complete({key} & self._regions.keys(), strict=True)
        return self.times.get(key, [])

    def get_time_stats(self, key: Hashable) -> TimeStats:
        """Return statistics of `get_time`."""
        times = self.get_time(key)
        if not times:
            raise OptionError(f"{key}: no region was timed; expected start() and end() of it")
        stdev = statistics.stdev(times) if len(times) > 1 else math.nan
        return TimeStats(
            min(times), statistics.mean(times), statistics.median(times), max(times), stdev
        )

    def complete_all(self) -> None:
        """Turn what has ended into times; what has only begun stays."""
        self._complete(self._regions, strict=False)

    def print_all_time_stats(self, file: Any = None) -> None:
        """Print the statistics of every key, to standard output or a text file."""
        for key, stats in self._all_stats().items():
            print(_name(key), file=file)
            print(stats, file=file)
        print("---", file=file)

    def save_all_time_stats(self, filename: str) -> None:
        """Print the statistics of every key into a new file."""
        save_text(filename, self.print_all_time_stats)

    def log_wb_all(self, prefix: str = "") -> None:
        """Log the mean of every key to Weights & Biases and the recording, and print them."""
        import wandb  # the user's own, of any version

        means = self._means(prefix)
        print(means)
        wandb.log(means)

    def log_mlflow_all(self, prefix: str = "") -> None:
        """Log the mean of every key to MLflow, and to the recording as `iobench.metric` does."""
        import mlflow

        mlflow.log_metrics(self._means(prefix))

    def _all_stats(self) -> dict[Hashable, TimeStats]:
        self._complete(self._regions, strict=True)
        return {key: self.get_time_stats(key) for key in self.times}

    def _means(self, prefix: str) -> dict[str, float]:
        stem = prefix and f"{prefix.rstrip('/')}/"
        means = {stem + _name(key): stats.mean for key, stats in self._all_stats().items()}
        for name, mean in means.items():
            with contextlib.suppress(OptionError):  # a key may be any text
                metric(name, mean)
        return means

    def _of(self, key: Hashable) -> _Regions:
        if key is TimeType.ALL:
            raise ValueError("Cannot use TimeType.ALL here")
        if key not in self._regions:
            self._regions[key] = _Regions(_name(key))
        return self._regions[key]

    def _complete(self, keys: Iterable[Hashable], *, strict: bool) -> None:
        # A source that keeps marks for later looks at them all at once.
        settle = getattr(self.timer_impl, "settle", None)
        if settle is not None and any(regions.pairs for regions in self._regions.values()):
            settle()
        for key in keys:
            regions = self._regions[key]
            if strict and regions.is_open:
                raise RuntimeError(f"Unbalanced start/end for region type {key}")
            pairs, regions.pairs = regions.pairs, []
            if pairs:
                times = self.times.setdefault(key, [])
                times.extend(self.timer_impl.get_time(*pair) for pair in pairs)


def save_text(filename: str, write: Callable[[Any], None]) -> None:
    """Make a new file of what is written; none where that raises."""
    text = io.StringIO()
    write(text)
    with Path(filename).open("x", encoding="utf-8") as file:
        file.write(text.getvalue())


def _name(key: Hashable) -> str:
    return str(getattr(key, "name", key))
