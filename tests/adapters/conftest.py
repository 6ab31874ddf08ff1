from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import iobench.recording.stages  # noqa: F401 - imported while files are watched it is seen
from iobench.adapters.installed import install, uninstall
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file

NUMBERS = ("nbytes", "start_ns", "end_ns", "cpu_ns", "batch", "epoch", "sample")


class Seen(NamedTuple):
    """A span as it was read back."""

    kind: str
    label: str
    detail: str
    thread: str
    nbytes: int
    start_ns: int
    end_ns: int
    cpu_ns: int
    batch: int
    epoch: int
    sample: int

    @property
    def stage(self) -> str:
        return f"{self.kind}:{self.label}" if self.label else self.kind

    def is_inside(self, outer: Seen) -> bool:
        return outer.start_ns <= self.start_ns <= self.end_ns <= outer.end_ns


class Watch:
    """Runs code while its spans are recorded; spans, and counters of chunks decoded, lie here."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.spans, self.counters = folder, [], []

    def __call__(self, work: Any, role: str = "worker") -> Any:
        with Recorder(self.folder, role=role) as recorder, activate(recorder):
            answer = work()
        self.read(recorder.path)
        return answer

    def read(self, path: Any) -> list[Seen]:
        file = read_span_file(path)
        assert not file.lost
        texts, names = {**file.strings, 0: ""}, file.thread_names
        self.spans, self.counters = [], []
        for span, thread in zip(file.spans, file.threads, strict=True):
            seen = Seen(
                Kind(int(span["kind"])).spelled, texts[int(span["label"])],
                texts[int(span["detail"])], names[int(thread)],
                *(int(span[name]) for name in NUMBERS),
            )  # fmt: skip
            (self.counters if span["flags"] & Flag.DECODED else self.spans).append(seen)
        return self.spans

    @property
    def stages(self) -> list[str]:
        return [span.stage for span in self.spans]

    @property
    def bytes_of(self) -> list[tuple[str, int]]:
        return [(span.stage, span.nbytes) for span in self.spans]


@pytest.fixture
def watch(tmp_path):
    return Watch(tmp_path / "spans")


@pytest.fixture
def installed():
    install()
    yield
    uninstall()
