"""Runs sketched span by span: analysed in memory, or written as run directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from iobench.analysis.run import Run
from iobench.recording import span_file
from iobench.recording.facts import LoaderFacts, ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import Anchor
from iobench.recording.span_writer import SpanWriter
from iobench.runs.contents import PROFILE_DTYPE, Process, RunData
from iobench.runs.received import with_received
from iobench.runs.run_facts import RunFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Lane = tuple[str, int] | tuple[str, int, int]
"""Role and number of a process; of a worker of a script also the number of its loader."""
Numbers = int | NDArray[Any]
CONSUMER: Final = ("consumer", -1)
"""The training process."""
FIRST_PID: Final = 1000
"""Of rank 0; that of rank 1 is twice as much."""
UNKNOWN: Final = dict.fromkeys(("nbytes", "cpu_ns", "sample", "batch", "epoch"), -1)


class SketchedRun:
    """A run of which each span is written down.

    Spans have ``lane``, ``kind``, ``start_ns``, ``end_ns`` and fields of spans; ``label`` and
    ``detail`` are texts, ``thread`` is a number. Numbers in arrays are of many spans.

    Examples
    --------
    >>> run = SketchedRun(workers=0)
    >>> run.add(CONSUMER, Kind.READ, 0, 4, batch=0, nbytes=100)
    >>> run.wait(0, 0, 4, "consumer")
    >>> run.open().of_rank().exposure.whole.exposed_ns
    {'read': 4}
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **more: Any) -> None:
        self.config: dict[str, Any] = {**(config or {}), **more}  # what ``run.json`` says
        self.spans: list[dict[str, Any]] = []
        self.process: dict[str, Any] = {}  # fields of `Process`, where they are not the usual
        self.processes: dict[Lane, dict[str, Any]] = {}  # the same of one process
        self.loaders: list[LoaderFacts] = []  # of a script, whose workers have lanes of three
        self.facts: dict[str, Any] = {}  # fields of `ProcessFacts` of its training process

    def add(
        self, lane: Lane, kind: Kind | Numbers, start_ns: Numbers, end_ns: Numbers, **fields: Any
    ) -> None:
        """Add a span of a process; of arrays, one for each of their items."""
        self.spans.append(
            {"lane": lane, "kind": kind, "start_ns": start_ns, "end_ns": end_ns, **fields}
        )

    def work(self, lane: Lane, start_ns: int, stages: Mapping[Kind, int], **fields: Any) -> int:
        """Add spans of stages one after another, by what each takes; return when the last ends."""
        for kind, spent_ns in stages.items():
            self.add(lane, kind, start_ns, start_ns + spent_ns, **fields)
            start_ns += spent_ns
        return start_ns

    def wait(
        self,
        batch: Numbers,
        start_ns: Numbers,
        end_ns: Numbers,
        made_by: str = "",
        *,
        lane: Lane = CONSUMER,
        **more: Any,
    ) -> None:
        """Add a wait of a training loop: for a batch, made by ``"worker-<n>"`` or the loop."""
        self.add(lane, Kind.WAIT, start_ns, end_ns, batch=batch, detail=made_by, **more)

    def shutdown(self, start_ns: int, end_ns: int, lane: Lane = CONSUMER) -> None:
        """Add the wait that ends a round."""
        self.add(lane, Kind.WAIT, start_ns, end_ns, label="shutdown")

    def round(self, start_ns: int, end_ns: int, number: int = 0, lane: Lane = CONSUMER) -> None:
        """Add a round: a pass over the loader."""
        self.add(lane, Kind.OTHER, start_ns, end_ns, label="round", sample=number)

    def submit(self, worker: int, batch: int, start_ns: int, end_ns: int) -> None:
        """Add the time that a batch was in a worker's queue."""
        self.add(("worker", worker), Kind.SUBMIT_QUEUE, start_ns, end_ns, batch=batch)

    def without(self, lane: Lane) -> Self:
        """Return the run without the spans of a process."""
        return self.with_spans([span for span in self.spans if span["lane"] != lane])

    def moved(self, change: Callable[[int], int]) -> Self:
        """Return the same spans at other times."""
        times = ("start_ns", "end_ns")
        moved = [{**span, **{name: change(span[name]) for name in times}} for span in self.spans]
        return self.with_spans(moved)

    def with_spans(self, spans: list[dict[str, Any]]) -> Self:
        """Return the run with other spans."""
        result = self.__class__.__new__(self.__class__)
        result.__dict__.update(self.__dict__, spans=spans)
        return result

    @property
    def lanes(self) -> list[Lane]:
        """Its processes, in order."""
        return sorted({*(span["lane"] for span in self.spans), *self.processes})

    def data(self) -> RunData:
        """Return it as it is read back."""
        lanes = self.lanes
        texts = [span.get(name, "") for span in self.spans for name in ("label", "detail")]
        strings = ("", *dict.fromkeys(text for text in texts if text))
        number = {text: index for index, text in enumerate(strings)}
        ends = np.cumsum([0, *(np.size(span["start_ns"]) for span in self.spans)]).tolist()
        table = np.zeros(ends[-1], PROFILE_DTYPE)
        table["sequence"] = np.arange(1, len(table) + 1)
        for span, start, end in zip(self.spans, ends, ends[1:], strict=False):
            values = {"pieces": 1, **UNKNOWN, **span}
            values["process"] = lanes.index(values.pop("lane"))
            for name in ("label", "detail"):
                values[name] = number[values.get(name, "")]
            for name, value in values.items():
                table[name][start:end] = value
        table = table[np.argsort(table["process"], kind="stable")]
        table = with_received(table, strings)
        processes = tuple(self._process(place, lane) for place, lane in enumerate(lanes))
        ranks = tuple(sorted({each.rank for each in processes if each.role == "consumer"}))
        return RunData(
            Path("run"), self.config, processes, table, strings,
            facts=self._facts(processes), ranks=ranks,
        )  # fmt: skip

    def open(self) -> Run:
        """Return it opened, without a directory."""
        return Run(self.data())

    def write(self, path: Path) -> Run:
        """Write its run directory, with span files as processes write them, and open it.

        It joins the run there where both are of the same ``job``: another rank of it.
        """
        run = RunDirectory.create(path, self.config, token=self.config.get("job", ""))
        data, first = self.data(), len(run.span_files())
        for place, owner in enumerate(data.processes):
            file = run.spans_path / f"{first + place:03d}-{owner.name}.spans"
            write_span_file(file, owner, data.spans[data.spans["process"] == place], data.strings)
        for facts in data.facts:
            facts.write(run.processes_path / f"rank{facts.rank}.json")
        return Run(path)

    def _process(self, place: int, lane: Lane) -> Process:
        role, worker, *_ = lane
        highest = max((s.get("thread", 0) for s in self.spans if s["lane"] == lane), default=0)
        known = {**self.process, **self.processes.get(lane, {})}
        pid = FIRST_PID * (1 + known.get("rank", 0))
        usual = Process(
            role, worker, 0, pid + place, "here", "boot", (Anchor(0, 0),), 0,
            closed=True, damaged=0, ppid=pid if worker >= 0 else 1,
            threads=("MainThread", *(f"Thread-{number + 1}" for number in range(highest))),
        )  # fmt: skip
        return replace(usual, **known)

    def _facts(self, processes: tuple[Process, ...]) -> tuple[ProcessFacts, ...]:
        """Return what a script's training process says of itself."""
        if not RunFacts.from_config(self.config).is_script:
            return ()
        owner = next((each for each in processes if each.role == "consumer"), None)
        place = {} if owner is None else {name: getattr(owner, name) for name in ("pid", "rank")}
        loaders = [
            replace(
                loader,
                worker_pids=[*loader.worker_pids, *(
                    process.pid
                    for process, lane in zip(processes, self.lanes, strict=True)
                    if lane[0] == "worker" and lane[2:] == (loader.number,)
                )],
            )
            for loader in self.loaders
        ]  # fmt: skip
        host = "here" if owner is None else owner.host
        known = {"ppid": 1, "pid": FIRST_PID, "host": host, "role": "consumer", "ended": "closed"}
        return (ProcessFacts(**{**known, **place, "loaders": loaders, **self.facts}),)


def write_span_file(
    path: Path, owner: Process, spans: NDArray[Any], strings: Sequence[str]
) -> None:
    """Write the file of a process, with the spans of each thread by their ends."""
    begin, end = owner.anchors[0], owner.anchors[-1]
    known = asdict(owner) | {"monotonic_ns": begin.monotonic_ns, "wall_ns": begin.wall_ns}
    identity = {name: known[name] for name in span_file.Identity.__struct_fields__}
    writer = SpanWriter(path, span_file.Identity(**identity))
    for number in np.union1d(spans["label"], spans["detail"]).tolist():
        if number:
            writer.string(number, strings[number])
    for thread in np.unique(spans["thread"]).tolist():
        rows = spans[spans["thread"] == thread][[*(span_file.SPAN_DTYPE.names or ())]]
        rows = rows[np.argsort(rows["end_ns"], kind="stable")].astype(span_file.SPAN_DTYPE)
        rows["sequence"] = np.arange(1, len(rows) + 1)
        for first in range(0, len(rows), span_file.SPANS_PER_CHUNK):
            part = rows[first : first + span_file.SPANS_PER_CHUNK].tobytes()
            of = (owner.pid, owner.threads[thread])
            mapping, offset = writer.chunk(span_file.SPANS, thread + 1, first + 1, of)
            mapping[offset : offset + len(part)] = part
    writer.write_lost(owner.lost)
    writer.write_own(owner.once_ns or 0, owner.own_ns or 0)
    writer.close(end.monotonic_ns, end.wall_ns)
    if not owner.closed:
        with path.open("r+b") as file:
            file.seek(span_file.END_OFFSET)
            file.write(bytes(span_file.END.size))
