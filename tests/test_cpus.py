"""CPUs are counted by affinity and cgroup quota, never by what the machine has."""

from __future__ import annotations

import os

import pytest

from iobench import cpus


@pytest.fixture
def quota(tmp_path):
    def ask(*, own="/job/step", **limits):
        for folder, text in limits.items():
            path = tmp_path / folder.replace("_", "/").strip("/")
            path.mkdir(parents=True, exist_ok=True)
            (path / "cpu.max").write_text(text)
        (tmp_path / "membership").write_text(f"1:name=systemd:/x\n0::{own}\n")
        return cpus._cgroup_quota(tmp_path, tmp_path / "membership")

    return ask


def test_no_limit_is_none(quota):
    assert quota(job_step="max 100000\n") is None


def test_no_cgroup_is_none(tmp_path):
    assert cpus._cgroup_quota(tmp_path, tmp_path / "missing") is None


def test_the_tightest_of_all_parents_counts(quota):
    assert quota(job_step="400000 100000\n", job="150000 100000\n") == 1.5


def test_a_limit_at_the_root_counts(quota):
    assert quota(own="/", **{"": "50000 100000\n"}) == 0.5


def test_an_unreadable_limit_is_no_limit(quota):
    assert quota(job_step="nonsense\n") is None


@pytest.mark.parametrize(
    ("allowed", "limit", "expected"),
    [(8, None, 8), (8, 2.5, 3), (8, 0.3, 1), (2, 16.0, 2)],
)
def test_affinity_and_quota_together(monkeypatch, allowed, limit, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    monkeypatch.setattr(cpus, "_cgroup_quota", lambda root, membership: limit)
    assert cpus.available_cpus() == expected
