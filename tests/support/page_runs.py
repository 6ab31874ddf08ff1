"""Small run directories for pages, and pages taken apart again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.report import units
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.report.report_document import report_document
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from iobench.analysis.run import Run

MS = 1_000_000
JOB = {
    "kind": "script",
    "command": "torchrun train.py",
    "job": "torch:1",
    "launcher": "torchrun",
    "world_size": 1,
    "machine": {"cpus": 4},
}
COMPUTE = {"forward_ns": 5 * MS, "backward_ns": 0, "source": "--compute 5ms"}
PUBLISHED = {"exposed_io_s": [0.02158, 0.10881, 0.10577, 6.02123, 0.22815], "source": "D2.3"}


def write_run(
    path: Path, *, batches: int = 40, read_ms: int = 6, killed: bool = False, **config: Any
) -> Path:
    """Write a run whose loop loads its batches itself: ``read_ms`` and 4 ms of decoding each."""
    facts: dict[str, Any] = {
        "dataset": "grib",
        "format": path.name,
        "framework": "workers",
        "workers": 0,
        "prefetch": 0,
        "batch_size": 2,
        "stand_in": False,
        "compute": COMPUTE,
        "published": PUBLISHED,
        "machine": {"cpus": 2, "cpu_model": "unnamed", "memory_nbytes": 8 * 10**9},
        "command": f"iobench profile grib --format {path.name}",
        "turns": "one profile",
    }
    run = SketchedRun({**facts, **config})
    now = start = 5_000
    for batch in range(batches):
        read = now + (read_ms + 20 * (batch % 8 == 7)) * MS
        held = read + 4 * MS
        of = {"batch": batch, "epoch": batch // 16}
        file = config.get("files_hint", f"fields-{batch % 3}.grib")
        run.add(CONSUMER, Kind.READ, now, read, nbytes=6_000_000, detail=file, **of)
        run.add(CONSUMER, Kind.DECODE, read, held, nbytes=8_000_000, detail=file, **of)
        run.wait(batch, now, held, "consumer", nbytes=8_000_000, epoch=batch // 16)
        now = held + 5 * MS
        run.add(CONSUMER, Kind.FORWARD, held, now, batch=batch)
    if killed:
        run.process = {"closed": False}
    else:
        run.shutdown(now, now + MS)
        run.round(start, now + MS)
    run.write(path)
    return path


def rank_sketch(waits_ms: Sequence[int], rank: int = 0, **config: Any) -> SketchedRun:
    """Return a training process of a job, and what it waited for each batch; 10 ms are computed."""
    run = SketchedRun(JOB, **config)
    run.process = {"rank": rank}
    run.facts = {"world_size": run.config["world_size"]}
    run.loaders = [LoaderFacts(0, "torch", "torch.utils.data.DataLoader", "Fields", batch_size=2)]
    waits = np.array(waits_ms) * MS
    batch, ends = np.arange(len(waits)), 5_000 + np.cumsum(waits + 10 * MS)
    held = ends - 10 * MS
    run.add(CONSUMER, Kind.READ, held - waits, held, nbytes=6_000_000, batch=batch)
    run.wait(batch, held - waits, held, "consumer", nbytes=8_000_000, sample=0)
    run.add(CONSUMER, Kind.FORWARD, held, ends, batch=batch)
    run.add(CONSUMER, Kind.OTHER, 5_000, ends[-1], sample=0, label="round", detail="loader-0")
    return run


def write_job(path: Path, *, ranks: int = 3, batches: int = 12) -> Path:
    """Write a job of several training processes; each waits longer than the one before."""
    for rank in range(ranks):
        rank_sketch([4 + 2 * rank] * batches, rank, world_size=ranks).write(path)
    return path


def render_page(runs: Sequence[Run]) -> str:
    """Return the page of runs, as ``iobench report --html`` writes it."""
    return HtmlRenderer().render(report_document(runs))


class PageParts(HTMLParser):
    """A page taken apart: its figures, headings, scripts, and elements by name."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.figures: list[dict[str, str]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {"h2": [], "script": [], "style": [], "pre": []}
        self.words = ""
        self._open: list[str] = []
        self._figure: dict[str, str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.elements.append((tag, named))
        self._open.append(tag)
        if tag == "data":
            self._figure = {**named, "text": ""}
            self.figures.append(self._figure)
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "data":
            self._figure = None
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if self._figure is not None:
            self._figure["text"] += data
        for tag in self.texts:
            if tag in self._open:
                self.texts[tag][-1] += data
        if inside not in ("script", "style"):
            self.words += data.replace("\xa0", " ")

    def element(self, **wanted: str) -> tuple[str, dict[str, str]]:
        """Return the only element with these attributes."""
        (found,) = [each for each in self.elements if wanted.items() <= each[1].items()]
        return found

    @property
    def document(self) -> dict[str, Any]:
        """The JSON that the page carries."""
        kinds = [named for tag, named in self.elements if tag == "script"]
        place = [named.get("id") for named in kinds].index("iobench-report")
        found = json.loads(self.texts["script"][place])
        assert isinstance(found, dict)
        return found


QUANTITIES: dict[str, Callable[[Any], str]] = {
    "B/s": units.byte_rate,
    "B": units.nbytes,
    "count": units.count,
    "ns": units.duration,
    "J": units.joules,
    "ratio": units.ratio,
    "samples/s": units.ratio,
    "s": "{:.5f}".format,
    "share": units.fraction,
    "change": units.signed_fraction,
}


def wrong_figures(figures: list[dict[str, str]]) -> list[str]:
    """Return the figures whose text is not their exact value, as `units` says it."""
    return [
        f"{figure['text']} for {figure['value']}" for figure in figures if not _is_right(figure)
    ]


def _is_right(figure: dict[str, str]) -> bool:
    name, text = figure["class"].split()[-1], figure["text"]
    if not figure["value"]:
        return units.UNKNOWN in text
    value = float(figure["value"])
    exact = int(value) if value.is_integer() else value
    if QUANTITIES[name](exact) in text:
        return True
    return name == "ns" and _is_in_column(value, text)


def _is_in_column(value: float, text: str) -> bool:
    """Whether a time without its unit, which stands in the heading, is one with two decimals."""
    try:
        number = float(text.lstrip("<=").replace(",", ""))
    except ValueError:
        return False
    sizes = (1, 1_000, 1_000_000, 1_000_000_000)
    if text.startswith("<") and not text.startswith("<="):
        return any(0 < value < number * size for size in sizes)
    return any(abs(number * size - value) <= 0.0051 * size for size in sizes)


def values_of(page: PageParts, name: str) -> set[float]:
    """Return the exact values of all figures of one sort."""
    return {
        float(each["value"])
        for each in page.figures
        if each["class"].endswith(f" {name}") and each["value"]
    }
