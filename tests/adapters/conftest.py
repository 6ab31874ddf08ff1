from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import iobench.recording.stages  # noqa: F401 - imported while files are watched it is seen
from iobench.adapters.installed import install, uninstall
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file


@dataclass(frozen=True)
class Seen:
    """A span as it was read back."""

    kind: str
    label: str
    detail: str
    nbytes: int
    start_ns: int
    end_ns: int
    cpu_ns: int
    batch: int
    epoch: int
    sample: int
    thread: str

    @property
    def stage(self) -> str:
        return f"{self.kind}:{self.label}" if self.label else self.kind


def seen_in(path: Path, *, counters: bool = False) -> list[Seen]:
    """Return spans of a file, or the counters of chunks decoded beside them."""
    file = read_span_file(path)
    assert not file.lost
    return [
        Seen(
            kind=Kind(int(span["kind"])).spelled,
            label=file.strings[int(span["label"])] if span["label"] else "",
            detail=file.strings[int(span["detail"])] if span["detail"] else "",
            **{
                name: int(span[name])
                for name in ("nbytes", "start_ns", "end_ns", "cpu_ns", "batch", "epoch", "sample")
            },
            thread=file.thread_names[int(thread)],
        )
        for span, thread in zip(file.spans, file.threads, strict=True)
        if counters == bool(span["flags"] & Flag.DECODED)
    ]


class Watch:
    """Runs code while its spans are recorded, and hands both back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spans: list[Seen] = []
        self.counters: list[Seen] = []

    def __call__(self, work: Callable[[], Any], role: str = "worker") -> Any:
        with Recorder(self.folder, role=role) as recorder:
            with activate(recorder):
                answer = work()
            path = recorder.path
        assert path is not None
        self.spans = seen_in(path)
        self.counters = seen_in(path, counters=True)
        return answer

    @staticmethod
    def read(path: Path) -> list[Seen]:
        return seen_in(path)

    @property
    def stages(self) -> list[str]:
        return [span.stage for span in self.spans]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path / "spans")


@pytest.fixture
def installed() -> Iterator[None]:
    install()
    yield
    uninstall()
