"""What is logged of a run, by names and values that any server takes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracked_runs import make_run

from iobench.analysis.run import Run
from iobench.tracking.run_metrics import PREFIX, legal_name, run_contents

LEGAL = re.compile(r"[A-Za-z0-9_.-]+")


@given(st.text())
def test_names_are_legal(text):
    name = legal_name(text)
    assert LEGAL.fullmatch(name)
    assert not set(name) <= {"."}
    assert len(PREFIX + name) < 250


def test_every_epoch_has_its_figures_and_they_add_up(tmp_path):
    rank = Run(make_run(tmp_path / "run")).of_rank()
    contents = run_contents(rank)
    assert [each.epoch for each in contents.epochs] == [0, 1]
    for each in contents.epochs:
        assert each.metrics[f"{PREFIX}epoch/complete"] == 1.0
        for name in ("batch_s", "exposed_io_s", "forward_s", "backward_s", "read/exposed_s"):
            for figure in ("min", "mean", "median", "max", "stdev"):
                assert f"{PREFIX}{name}/{figure}" in each.metrics
    waited = sum(each.metrics[f"{PREFIX}epoch/wait_s"] for each in contents.epochs)
    assert waited == pytest.approx(contents.totals[f"{PREFIX}run/wait_s"], abs=1e-12)
    assert waited == pytest.approx(rank.exposure.whole.wait_ns / 1e9)


def test_processes_have_keys_of_their_own_which_stay(tmp_path):
    ranks = [*Run(make_run(tmp_path / "run", ranks=2))]
    keys = [run_contents(each, name=f"rank-{each.rank}").key for each in (*ranks, *ranks)]
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2
