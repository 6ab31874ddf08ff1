"""The page of a report, read as text: its figures, its parts, and what cannot get into it."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256

import numpy as np
import pytest
from msgspec.structs import replace
from page_runs import PageParts, render_page, values_of, write_job, write_run, wrong_figures
from traced_runs import MS, TracedRun

from iobench.analysis.run import Run, open_runs
from iobench.recording.kinds import Kind
from iobench.recording.machine_head import EnergySource, MachineHead, UnreadableEnergy
from iobench.runs.machine_samples import EnergySeries, MachineSamples
from tests.support.run_json import to_json


def parts_of(runs):
    """Return a page taken apart, whose figures are as exact as they say."""
    page = PageParts(render_page(runs if isinstance(runs, list) else open_runs(runs)))
    assert wrong_figures(page.figures) == []
    return page


def tabs_of(page):
    return [named["aria-controls"] for _, named in page.elements if named.get("role") == "tab"]


def test_figures_carry_the_exact_values_that_json_has(tmp_path):
    run = write_run(tmp_path / "source")
    page, document = parts_of(run), json.loads(json.dumps(to_json(open_runs(run))))
    assert page.document == document
    (figures,) = document["runs"]
    shares = {figures["steady"]["wait_fraction"], figures["cold_fraction"]}
    assert shares <= {*values_of(page, "share"), None}
    assert figures["steady"]["samples_per_s"] in values_of(page, "samples/s")
    times = {figures["steady"]["wait_ns"], *figures["steady"]["exposed_ns"].values()}
    assert times <= values_of(page, "ns")


def test_formats_are_compared_first_and_every_label_points_at_something(tmp_path):
    write_run(tmp_path / "tfrecord", read_ms=1, position=1)
    write_run(tmp_path / "source", position=0)
    page = parts_of(tmp_path)
    assert page.texts["h2"][:2] == ["Compared", "What to try next"]
    assert tabs_of(page) == ["run-0", "run-1"]
    rates = {run["steady"]["samples_per_s"] for run in page.document["runs"]}
    assert rates <= values_of(page, "samples/s")
    ids = [named["id"] for _, named in page.elements if "id" in named]
    assert len(ids) == len(set(ids))
    for _, named in page.elements:
        assert named.get("aria-labelledby", ids[0]) in ids
        assert named.get("aria-controls", ids[0]) in ids
        if named.get("href", "").startswith("#"):
            assert named["href"][1:] in ids


def test_a_job_has_its_slowest_rank_first(tmp_path):
    page = parts_of(write_job(tmp_path / "run"))
    assert tabs_of(page) == ["run-2", "run-1", "run-0"]
    assert {each["wait_ns"] for each in page.document["job"]["ranks"]} <= values_of(page, "ns")


@pytest.mark.parametrize("batches", [0, 1])
def test_a_killed_run_has_a_page(tmp_path, batches):
    page = parts_of(write_run(tmp_path / "source", killed=True, batches=batches))
    assert page.texts["h2"][0] == "Verdict"


def test_only_our_own_scripts_and_styles_may_run(tmp_path):
    page = parts_of(write_run(tmp_path / "source"))
    _, policy = page.element(**{"http-equiv": "Content-Security-Policy"})
    allowed = dict(each.split(" ", 1) for each in policy["content"].split("; "))
    assert allowed["default-src"] == "'none'"
    assert "unsafe" not in policy["content"]
    kinds = [named for tag, named in page.elements if tag == "script"]
    texts = zip(kinds, page.texts["script"], strict=True)
    run = [text for named, text in texts if "type" not in named]
    for name, texts in (("script-src", run), ("style-src", page.texts["style"])):
        digests = {b64encode(sha256(text.encode()).digest()).decode() for text in texts}
        assert set(allowed[name].split()) == {f"'sha256-{digest}'" for digest in digests} != set()
    assert {named.get("type") for named in kinds} == {None, "application/json", "text/plain"}
    # Styles of elements would be refused as well.
    assert not any("style" in named for _, named in page.elements)
    assert not any(
        named.get(name, "#").startswith(("http", "//"))
        for _, named in page.elements
        for name in ("src", "href")
    )


def test_what_a_tracer_saw_and_joules_are_shown_and_what_is_not_readable_is_never_zero():
    """Two workers that read a file for each of 20 batches; a counter of 40 J, and one denied."""
    run = TracedRun(config={"n_samples": 20, "format": "source"})
    workers = [run.worker(), run.worker()]
    for batch in range(20):
        worker, at, file = workers[batch % 2], 10.0 * batch, f"/data/<b>{batch}</b>.bin"
        worker.span(Kind.READ, at, at + 4, batch=batch, detail=file, nbytes=1000)
        worker.read(file, at + 1, at + 3, 0, 1000)
        run.wait(batch, at + 2, at + 6)
    profile = run.data()
    source = EnergySource("gpu:0", "gpu", "NVIDIA A100")
    series = EnergySeries(source, np.array([0, 400 * MS]), np.array([0.0, 40.0]), n_resets=0)
    host, none = profile.processes[0], np.zeros(0, dtype=np.int64)
    unreadable = (UnreadableEnergy("cpu", "permission denied"),)
    head = MachineHead(host.host, host.boot_id, sources=(source,), unreadable=unreadable)
    machine = MachineSamples(head, none, none.reshape(0, 0), {}, (series,))
    page = parts_of([Run(replace(profile, machines=(machine,)), run.trace())])
    assert {"Storage", "Energy"} < {*page.texts["h2"]}
    (found,) = page.document["runs"]
    assert found["storage"]["in_stages"]["read"]["busy_ns"] in values_of(page, "ns")
    (total,) = {each["total_j"] for each in found["energy"]["kinds"].values()}
    assert total in values_of(page, "J")
    assert "CPUs: permission denied" in page.words
    assert "Energy" not in parts_of([Run(profile)]).texts["h2"]
