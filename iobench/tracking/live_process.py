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
from typing import IO, Any, Final

from iobench.analysis.run import Run
from iobench.errors import IobenchError, ProfileError
from iobench.profiles.reading import open_profile
from iobench.recording.run_directory import RunDirectory
from iobench.tracking.artifacts import make_artifacts
from iobench.tracking.contents import RunContents, run_contents
from iobench.tracking.mlflow_runs import MlflowRuns, bounded_mlflow
from iobench.tracking.notes import TrackingNotes
from iobench.tracking.wandb_runs import WandbRuns

__all__ = ["LiveTeller", "main"]

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
        self._mlflow: tuple[MlflowRuns, str] | None = None
        self._wandb: tuple[WandbRuns, Any] | None = None
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
            for wanted, told in (("mlflow", self._to_mlflow), ("wandb", self._to_wandb)):
                if self.order[wanted]:
                    try:
                        told(contents, files, final=final)
                    except IobenchError as error:
                        self.answer({"failed": str(error), "by": wanted})

    def _opened(self) -> Run:
        RunDirectory.open(self.run)
        return Run(open_profile(self.run, rank=int(self.order["rank"])))

    def _answer_epochs(self, contents: RunContents, *, final: bool) -> None:
        for each in contents.due(final=final):
            if each.epoch not in self._answered:
                self._answered.add(each.epoch)
                self.answer({"epoch": asdict(each)})
        if final:
            self.answer({"totals": contents.totals})

    def _to_mlflow(self, contents: RunContents, files: list[Path], *, final: bool) -> None:
        if self._mlflow is None:
            runs = MlflowRuns(
                self.run, self.order["mlflow"], self.notes, join=self.order["join"] or None
            )
            title = f"{self.run.name} {self.name}".strip()
            self._mlflow = runs, runs.open(self.name, title=title, start_ms=contents.start_ms)
        runs, run_id = self._mlflow
        runs.tell(run_id, contents, final=final)
        if final:
            runs.add_files(run_id, files)
            runs.close(run_id, self.name, end_ms=contents.end_ms)
            self.answer({"told": runs.address(run_id), "by": "mlflow"})

    def _to_wandb(self, contents: RunContents, files: list[Path], *, final: bool) -> None:
        if self._wandb is None:
            runs = WandbRuns(self.run, self.order["wandb"], self.notes)
            self._wandb = runs, runs.begin(self.name, title=self.run.name)
        runs, run = self._wandb
        runs.log(run, contents, final=final)
        if final:
            runs.log_files(run, files)
            runs.finish(run)
            self.answer({"told": runs.address(run), "by": "wandb"})


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
    with bounded_mlflow():
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
