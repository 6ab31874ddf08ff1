"""A DataLoader of the user's own in the measured loop: its batches, and the work of its workers."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
from span_rows import rows_by_kind
from tiny_pipeline import COSTS

from iobench.errors import WorkerError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.stage_timer import Detail
from iobench.recording.kinds import Kind

torch = pytest.importorskip("torch", reason="the loader is PyTorch's")
import drop_in_parts as parts  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from iobench.torch.measured_loaders import ReadyLoader  # noqa: E402

pytestmark = pytest.mark.timeout(60)
EDGES = (Kind.SUBMIT_QUEUE, Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE)


def planned(n_batches):
    return [PlannedBatch(number, 0, ()) for number in range(n_batches)]


def ready(loader, run, recorder):
    def passes(_, begin):
        for value, _ in begin(loader):
            yield {"value": value.numpy()}

    return ReadyLoader(
        loader, passes, run=run, recorder=recorder, detail=Detail.SAMPLE, unit_costs=COSTS
    )


class Doomed(parts.Plain):
    """Kills its worker at one sample."""

    def __getitem__(self, index):
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Halves(torch.utils.data.IterableDataset):
    """Each of two workers has three samples: torch asks each once more than it has batches."""

    def __iter__(self):
        number = torch.utils.data.get_worker_info().id
        return ((torch.full((3,), float(number)), index) for index in range(3))


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}],
                         ids=str)  # fmt: skip
def test_every_batch_of_every_pass_has_its_spans(run, consumer, options):
    loader = DataLoader(parts.Plain(6), batch_size=2, num_workers=2, **options)
    with ready(loader, run, consumer) as measured:
        assert (measured.workers, measured.prefetch) == (2, 2)
        batches = list(measured.batches(planned(6)))
    assert [len(batch.arrays["value"]) for batch in batches] == [2] * 6
    assert sorted(batch.planned.batch for batch in batches) == list(range(6))
    assert [batch.planned.epoch for batch in batches] == [0, 0, 0, 1, 1, 1]
    rows = rows_by_kind(run)
    maker = {row.batch: row.worker for row in rows[Kind.COLLATE]}
    assert {batch.planned.batch: batch.worker for batch in batches}.items() <= maker.items()
    for kind in EDGES:
        assert {row.batch for row in rows[kind]} == set(range(6)), kind


def test_rounds_go_on_where_the_last_one_stopped(run, consumer):
    loader = DataLoader(parts.Plain(8), batch_size=2, num_workers=1)
    with ready(loader, run, consumer) as measured:
        values = [
            batch.arrays["value"][0, 0].item()
            for first in (0, 2)
            for batch in measured.batches(planned(4)[first : first + 2])
        ]
    assert values == [0, 2, 4, 6]
    assert len({row.thread for row in rows_by_kind(run)[Kind.COLLATE]}) == 1


def test_numbers_are_those_of_the_workers_batches(run, consumer):
    loader = DataLoader(Halves(), batch_size=2, num_workers=2)
    with ready(loader, run, consumer) as measured:
        batches = list(measured.batches(planned(8)))
    rows = rows_by_kind(run)
    for batch in batches:
        (row,) = [row for row in rows[Kind.COLLATE] if row.batch == batch.planned.batch]
        assert row.worker == batch.worker == batch.arrays["value"][0, 0]


# Torch's SIGCHLD handler raises wherever the consumer is, also where nothing can be raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        (
            lambda: parts.Faulty("value", at=0),
            "batch 0: Caught ValueError in .*no such",
        ),
        (lambda: Doomed(6), "worker-0 .pid .* killed by SIGKILL"),
        (lambda: parts.Plain(0), "pass 0 of the loader has no batch"),
    ],
    ids=["raises", "killed", "empty"],
)
def test_what_goes_wrong_is_one_line_and_ends_the_workers(run, consumer, dataset, line):
    loader = DataLoader(dataset(), batch_size=2, num_workers=1, persistent_workers=True)
    measured = ready(loader, run, consumer)
    with pytest.raises(WorkerError, match=f"^{line}[^\n]*$"):
        list(measured.batches(planned(4)))
    assert multiprocessing.active_children() == []
    with pytest.raises(WorkerError, match="closed"):
        measured.batches(planned(1))
