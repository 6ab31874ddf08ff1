"""Set-up jobs run in fresh processes, and what happens there reaches the caller."""

from __future__ import annotations

import pytest

from iobench.datasets.setup_processes import run_jobs
from iobench.errors import OptionError, WorkerError

MODULE = """
import os, sys
from iobench.errors import OptionError

def double(job, advance):
    print("noise on standard output")
    advance(1)
    return 2 * job, os.getpid()

def refuse(job, advance):
    raise OptionError(f"job {job} is wrong")

def vanish(job, advance):
    os._exit(3)
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    (tmp_path / "set_up_jobs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import set_up_jobs

    return set_up_jobs


@pytest.mark.quick_cases(1)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", [1, 2, 5])
def test_every_job_is_done_once(jobs, processes):
    seen = []
    outcomes = dict(
        run_jobs(
            jobs.double, range(5), processes=processes, total=5,
            progress=lambda done, total: seen.append((done, total)),
        )
    )  # fmt: skip
    assert {number: value for number, (value, _) in outcomes.items()} == {
        0: 0, 1: 2, 2: 4, 3: 6, 4: 8,
    }  # fmt: skip
    assert len({pid for _, pid in outcomes.values()}) == processes
    assert seen == [(done, 5) for done in range(1, 6)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", [1, 2])
def test_errors_on_purpose_arrive_as_they_are(jobs, processes):
    with pytest.raises(OptionError, match="is wrong"):
        list(run_jobs(jobs.refuse, range(2), processes=processes))


@pytest.mark.timeout(60)
def test_child_that_vanishes_is_an_error(jobs):
    with pytest.raises(WorkerError, match="exit code 3"):
        list(run_jobs(jobs.vanish, range(2), processes=2))


@pytest.mark.timeout(60)
def test_leaving_early_ends_the_children(jobs):
    outcomes = run_jobs(jobs.double, range(100), processes=2)
    next(outcomes)
    outcomes.close()
