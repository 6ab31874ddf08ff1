"""Set-up jobs run in fresh processes, and what happens there reaches the caller."""

from __future__ import annotations

import pytest

from iobench.datasets.setup_processes import run_jobs
from iobench.errors import OptionError, WorkerError

MODULE = """
import os, sys
from iobench.errors import OptionError

def double(job):
    print("noise on standard output")
    return 2 * job, os.getpid()

def refuse(job):
    raise OptionError(f"job {job} is wrong")

def vanish(job):
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
    outcomes = list(run_jobs(jobs.double, range(5), processes=processes))
    assert sorted((number, value) for number, (value, _) in outcomes) == [
        (number, 2 * number) for number in range(5)
    ]
    assert len({pid for _, (_, pid) in outcomes}) == processes


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
