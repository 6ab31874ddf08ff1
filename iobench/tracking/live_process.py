"""The process beside a training that tells servers of its epochs while it goes on.

Beside it, and not a thread of it: figures are made from all spans so far, which would hold the
training's interpreter, and a server may take its time. It reads orders from stdin and answers on
stdout, a line of JSON each, gives way to everything else, and ends with its training.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from iobench.analysis.run import Run
from iobench.errors import IobenchError, ProfileError
from iobench.profiles.reading import open_profile
from iobench.recording.run_directory import RunDirectory
from iobench.tracking.artifacts import make_artifacts
from iobench.tracking.mlflow_runs import MlflowRuns
from iobench.tracking.run_metrics import RunContents, run_contents
from iobench.tracking.tracking_notes import TrackingNotes
from iobench.tracking.wandb_runs import WandbRuns

if TYPE_CHECKING:
    from iobench.tracking.trackers import Tracker

GIVES_WAY: Final = 10
ENDED: Final = "ended"


class LiveTeller:
    """Tells of one training process, again and again.

    Parameters
    ----------
    order : dict
        ``run``, ``rank``, ``name`` (`RunContents`), ``mlflow``, ``join``, ``wandb``, and
        ``figures``: whether the training itself wants them.
    answer : callable
        Called with what is to be said to the training.
    """

    def __init__(self, order: dict[str, Any], answer: Any) -> None:
        self.order, self.answer = order, answer
        self.run, self.name = Path(order["run"]), str(order["name"])
        self.notes = TrackingNotes(self.run, rank=int(order["rank"]))
        self.title = self.run.name
        self._begun: dict[str, tuple[Tracker, Any]] = {}
        self._answered: set[int] = set()

    def tell(self, *, final: bool) -> None:
        """Tell whoever was asked for of the epochs that are over.

        One that does not answer is said, and asked again next time.
        """
        try:
            run = self._opened()
            contents = run_contents(run.of_rank(), name=self.name)
        except ProfileError as error:
            if final:
                self.answer({"failed": str(error), "by": "run"})
            return
        if self.order["figures"]:
            self._answer_epochs(contents, final=final)
        with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
            files: list[Path] = []
            if final and (self.order["mlflow"] or self.order["wandb"]):
                try:
                    files, _ = make_artifacts([run], Path(folder))
                except IobenchError as error:
                    self.answer({"failed": str(error), "by": "files"})
            for wanted in ("mlflow", "wandb"):
                if self.order[wanted]:
                    try:
                        self._to_tracker(wanted, contents, files, final=final)
                    except IobenchError as error:
                        self.answer({"failed": str(error), "by": wanted})

    def _opened(self) -> Run:
        self.title = RunDirectory.open(self.run).config.get("name") or self.run.name
        return Run(open_profile(self.run, rank=int(self.order["rank"])))

    def _answer_epochs(self, contents: RunContents, *, final: bool) -> None:
        for each in contents.due(final=final):
            if each.epoch not in self._answered:
                self._answered.add(each.epoch)
                self.answer({"epoch": asdict(each)})
        if final:
            self.answer({"totals": contents.totals})

    def _to_tracker(
        self, wanted: str, contents: RunContents, files: list[Path], *, final: bool
    ) -> None:
        if wanted not in self._begun:
            made = self._tracker(wanted)
            self._begun[wanted] = made, made.begin(contents, title=self.title)
        tracker, run = self._begun[wanted]
        tracker.tell(run, contents, final=final)
        if final:
            tracker.add_files(run, files)
            tracker.end(run, contents)
            self.answer({"told": tracker.address(run), "by": wanted})

    def _tracker(self, wanted: str) -> Tracker:
        if wanted == "wandb":
            return WandbRuns(self.run, self.order["wandb"], self.notes)
        join = self.order["join"] or None
        return MlflowRuns(self.run, self.order["mlflow"], self.notes, join=join)


def main() -> int:
    """Do as told on stdin until it ends."""
    logging.disable(logging.WARNING)
    if hasattr(os, "nice"):
        os.nice(GIVES_WAY)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    first = _order(sys.stdin.readline())
    if first is None:
        return 1

    def answer(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    teller = LiveTeller(first, answer)
    threading.Thread(target=_read, args=(sys.stdin, orders), daemon=True).start()
    try:
        _follow(teller, orders)
    except BrokenPipeError:
        return 1  # the training is gone
    return 0


def _follow(teller: LiveTeller, orders: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Tell after each order; of several that came meanwhile, once."""
    while True:
        due = [orders.get()]
        while not orders.empty():
            due.append(orders.get())
        given = [order for order in due if order is not None]
        for order in given:
            os.environ.update(order.get("environment") or {})
        if any(order.get(ENDED) for order in given):
            teller.tell(final=True)
            teller.answer({ENDED: True})
            return
        if given:
            teller.tell(final=False)
        if len(given) < len(due):
            return


def _read(stdin: IO[str], orders: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in stdin:
        orders.put(_order(line))
    orders.put(None)


def _order(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


if __name__ == "__main__":
    sys.exit(main())
