"""The lines that make a change, and those that measure it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from iobench.subjects.advice.commands import commands_of
from iobench.subjects.advice.levers import Candidate, Lever


@pytest.mark.parametrize(
    ("store", "line"),
    [
        (None, 'iobench.open_dataset("own.nc").loader(8, shuffle=True)'),
        (object(), "iobench.loader(STORE, 8, shuffle=True)"),
    ],
)
def test_the_fast_loader_is_proposed_for_what_is_loaded(store: object, line: str) -> None:
    command = "iobench profile own.nc --framework workers"
    facts = SimpleNamespace(command=command, dataset="own", is_script=False, framework="workers")
    baseline = SimpleNamespace(
        run=SimpleNamespace(batch_size=8, workers=2),
        store=store,
        format="tfrecord",
        framework="workers",
        pipeline="own",
    )
    candidate = Candidate((Lever.LOADER,), {"framework": "native"})
    found = commands_of(candidate, facts, baseline)  # type: ignore[arg-type]
    assert found == (line, "iobench profile own.nc --framework native")
