"""The page of a report, read as text: its figures, its parts, and what cannot get into it."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from page_runs import PageParts, render_page, values_of, write_job, write_run, wrong_figures

from iobench.analysis.run import open_runs
from tests.support.run_json import to_json


def parts_of(path: Path) -> PageParts:
    return PageParts(render_page(open_runs(path)))


def test_figures_carry_the_exact_values_that_json_has(tmp_path: Path) -> None:
    run = write_run(tmp_path / "source")
    page, document = parts_of(run), json.loads(json.dumps(to_json(open_runs(run))))
    assert page.document == document
    assert wrong_figures(page.figures) == []
    (figures,) = document["runs"]
    assert {figures["steady"]["wait_fraction"], figures["cold_fraction"]} <= {
        *values_of(page, "share"), None,
    }  # fmt: skip
    assert figures["steady"]["samples_per_s"] in values_of(page, "samples/s")
    assert figures["steady"]["wait_ns"] in values_of(page, "ns")
    assert {*figures["steady"]["exposed_ns"].values()} <= values_of(page, "ns")


def test_formats_are_compared_first(tmp_path: Path) -> None:
    write_run(tmp_path / "tfrecord", read_ms=1, position=1)
    write_run(tmp_path / "source", position=0)
    page = parts_of(tmp_path)
    assert page.texts["h2"][:2] == ["Compared", "What to try next"]
    assert wrong_figures(page.figures) == []
    tabs = [named for tag, named in page.elements if named.get("role") == "tab"]
    assert [tab["aria-controls"] for tab in tabs] == ["run-0", "run-1"]
    assert {run["steady"]["samples_per_s"] for run in page.document["runs"]} <= values_of(
        page, "samples/s"
    )


def test_a_job_has_a_heat_map_and_its_slowest_rank_first(tmp_path: Path) -> None:
    page = parts_of(write_job(tmp_path / "run"))
    _, heat = page.element(**{"class": "heat-map"})
    assert heat["viewbox"] == "0 0 48 3"
    assert sum(named["d"].count("M") for tag, named in page.elements if tag == "path") > 0
    tabs = [named["aria-controls"] for _, named in page.elements if named.get("role") == "tab"]
    assert tabs == ["run-2", "run-1", "run-0"]
    assert wrong_figures(page.figures) == []
    waits = {each["wait_ns"] for each in page.document["job"]["ranks"]}
    assert waits <= values_of(page, "ns")


@pytest.mark.parametrize("batches", [0, 1])
def test_a_killed_run_has_a_page(tmp_path: Path, batches: int) -> None:
    page = parts_of(write_run(tmp_path / "source", killed=True, batches=batches))
    assert wrong_figures(page.figures) == []
    assert page.texts["h2"][0] == "Verdict"


def test_only_our_own_scripts_and_styles_may_run(tmp_path: Path) -> None:
    page = parts_of(write_run(tmp_path / "source"))
    _, policy = page.element(**{"http-equiv": "Content-Security-Policy"})
    allowed = dict(each.split(" ", 1) for each in policy["content"].split("; "))
    assert allowed["default-src"] == "'none'"
    assert "unsafe" not in policy["content"]
    kinds = [named for tag, named in page.elements if tag == "script"]
    run = [
        text for named, text in zip(kinds, page.texts["script"], strict=True) if "type" not in named
    ]
    assert run
    assert page.texts["style"]
    for name, texts in (("script-src", run), ("style-src", page.texts["style"])):
        digests = {b64encode(sha256(text.encode()).digest()).decode() for text in texts}
        assert set(allowed[name].split()) == {f"'sha256-{digest}'" for digest in digests}
    assert {named.get("type") for named in kinds} == {None, "application/json", "text/plain"}
    # Styles of elements would be refused as well.
    assert not any("style" in named for _, named in page.elements)
    assert not any(
        named.get(name, "#").startswith(("http", "//"))
        for _, named in page.elements
        for name in ("src", "href")
    )


def test_every_label_points_at_something(tmp_path: Path) -> None:
    write_run(tmp_path / "tfrecord", read_ms=1)
    write_run(tmp_path / "source")
    page = parts_of(tmp_path)
    ids = [named["id"] for _, named in page.elements if "id" in named]
    assert len(ids) == len(set(ids))
    for _, named in page.elements:
        assert named.get("aria-labelledby", ids[0]) in ids
        assert named.get("aria-controls", ids[0]) in ids
        if named.get("href", "").startswith("#"):
            assert named["href"][1:] in ids
