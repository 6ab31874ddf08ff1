"""A trace of torch's profiler laid beside ours: of a real loader, on one clock."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from trace_rules import check_trace, read_trace

import iobench
from iobench.analysis.run import Run
from iobench.report.timeline.chrome_trace import write_trace
from iobench.torch import DataLoader

pytestmark = pytest.mark.timeout(60)


def test_waits_lie_in_what_torch_calls_next(tmp_path):
    """The clocks of a real run agree: torch's span around ``__next__`` holds our wait."""
    loader = DataLoader(torch.arange(64.0), batch_size=4, num_workers=1)
    with iobench.record(tmp_path / "run"), torch.profiler.profile() as profiler:
        assert sum(1 for _ in loader) == 16
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    profile = iobench.open_profile(tmp_path / "run")
    write_trace(tmp_path / "both.json", [Run(profile)], torch_traces=[tmp_path / "torch.json"])
    document = read_trace(tmp_path / "both.json")
    check_trace(document)
    spans = [each for each in document["traceEvents"] if each["ph"] == "X"]
    calls = [each for each in spans if each["name"].endswith("DataLoaderIter.__next__")]
    waits = [each for each in spans if each["name"] == "wait" and "batch" in each["args"]]
    assert len(waits) == 16
    assert {each["pid"] for each in calls} == {each["pid"] for each in waits}
    slack = 1000  # us: what the profiler's own clock may be off
    for wait in waits:
        holding = [
            call
            for call in calls
            if call["ts"] - slack <= wait["ts"]
            and wait["ts"] + wait["dur"] <= call["ts"] + call["dur"] + slack
        ]
        assert holding, wait
