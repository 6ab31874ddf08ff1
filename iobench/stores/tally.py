"""Where the time of one conversion went, and its bytes: stage by stage, over all threads."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Tally:
    """Seconds and bytes of each stage of a conversion, and its shards; safe in threads.

    Stages are ``read``, ``decode``, ``preprocess`` (fused ones joined by ``+``), ``encode`` and
    ``write``. Their times are summed over threads, so that together they may exceed the wall time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ns: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()  # out of each stage; of ``write``, of files
        self.first_ns = 0  # when the first stage began
        self.n_written = 0  # finished shards
        self.n_resumed = 0

    @contextmanager
    def timed(self, stage: str, nbytes: int = 0) -> Iterator[None]:
        """Add the time a block takes to a stage, and so many bytes if it succeeds."""
        started_ns = now_ns()
        self.first_ns = self.first_ns or started_ns
        try:
            yield
            self.add_nbytes(stage, nbytes)
        finally:
            with self._lock:
                self._ns[stage] += now_ns() - started_ns

    def add_nbytes(self, stage: str, nbytes: int) -> None:
        """Add bytes to a stage."""
        with self._lock:
            self.nbytes[stage] += nbytes

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage, in the order the stages were first met."""
        with self._lock:
            return {stage: ns / 1e9 for stage, ns in self._ns.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        shards = {"written": self.n_written, "resumed": self.n_resumed}
        return {"seconds": self.seconds, "nbytes": dict(self.nbytes), "shards": shards}

    def merge(self, values: Mapping[str, Any]) -> None:
        """Add what another process tallied, as `to_dict` gave it; its shards count as written."""
        with self._lock:
            self._ns.update({name: round(each * 1e9) for name, each in values["seconds"].items()})
            self.nbytes.update(values["nbytes"])
            self.n_written += values["shards"]["written"]
