"""The page of a report, read as text: its figures, its parts, and what cannot get into it."""

from __future__ import annotations

import errno
import html
import json
import os
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace
from page_runs import PageParts, render_page, values_of, write_job, write_run, wrong_figures

from iobench.analysis.epochs import epoch_figures
from iobench.analysis.run import Run, open_runs
from iobench.cli import main
from iobench.cli.documents import write_document
from iobench.errors import MissingExtraError, ProfileError, StorageError
from iobench.recording.run_directory import RunDirectory
from iobench.report.json_report import to_json
from iobench.report.report_document import report_document
from iobench.runs.reading import open_profile

HOSTILE = "<script>pwned()</script>\"'><img src=x onerror=pwned()>&amp;</style>\x1b[2J\x00\u202egpj"
ABSENT = ("\x1b", "\x00", "\u202e", "<img", "<script>pwned")


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
    assert figures["steady"]["samples_per_s"] in values_of(page, "samplerate")
    assert figures["wait_ns"] in values_of(page, "duration")
    for row in figures["stages"]:
        assert round(row["busy_s"] * 1e9) in values_of(page, "duration")
        assert row["n_spans"] in values_of(page, "count")


def test_a_wrong_figure_would_be_found(tmp_path: Path) -> None:
    page = parts_of(write_run(tmp_path / "source"))
    for figure in page.figures:
        assert wrong_figures([{**figure, "value": "-7.25e11"}]), figure


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    page = parts_of(write_run(tmp_path / "source"))
    assert page.texts["h2"] == [
        "Verdict",
        "What faster stages would gain",
        "What to try next",
        "Timeline",
        "Epoch by epoch, with the start-up and end of each",
        "Where loading spends its time",
        "Wait per step",
        "Bytes and rates",
        "Start-up, fill, steady state, end",
        "Storage",
        "MLPerf Storage",
        "Machine and configuration",
        "How far to trust these figures",
        "How to read this page",
    ]
    assert page.document["runs"][0]["verdict"] in page.words
    for name in ("timeline", "wait-chart", "wait-distribution"):
        assert page.element(**{"class": name})[1]["data-run"] == "0"


def test_commands_to_try_are_there_to_copy(tmp_path: Path) -> None:
    run = write_run(tmp_path / "source")
    wanted = [each["command"] for each in to_json(open_runs(run))["runs"][0]["next_steps"]]
    assert wanted
    assert set(filter(None, wanted)) <= set(parts_of(run).texts["pre"])


def test_formats_are_compared_first(tmp_path: Path) -> None:
    write_run(tmp_path / "tfrecord", read_ms=1, position=1)
    write_run(tmp_path / "source", position=0)
    page = parts_of(tmp_path)
    assert page.texts["h2"][:2] == ["Compared", "What to try next"]
    assert wrong_figures(page.figures) == []
    tabs = [named for tag, named in page.elements if named.get("role") == "tab"]
    assert [tab["aria-controls"] for tab in tabs] == ["run-0", "run-1"]
    assert {run["steady"]["samples_per_s"] for run in page.document["runs"]} <= values_of(
        page, "samplerate"
    )


def test_a_job_has_a_heat_map_and_its_slowest_rank_first(tmp_path: Path) -> None:
    page = parts_of(write_job(tmp_path / "run"))
    _, heat = page.element(**{"class": "heat-map"})
    assert heat["data-rows"] == "0,1,2"
    assert heat["viewbox"] == "0 0 48 3"
    assert sum(named["d"].count("M") for tag, named in page.elements if tag == "path") > 0
    tabs = [named["aria-controls"] for _, named in page.elements if named.get("role") == "tab"]
    assert tabs == ["run-2", "run-1", "run-0"]
    assert wrong_figures(page.figures) == []
    waits = {round(each["wait_s"] * 1e9) for each in page.document["job"]["ranks"]}
    assert waits <= values_of(page, "duration")


def test_ranks_of_one_profile_are_shown_one_by_one(tmp_path: Path) -> None:
    run = write_job(tmp_path / "run")
    page = PageParts(render_page([Run(open_profile(run))]))
    timelines = [n["data-run"] for _, n in page.elements if n.get("class") == "timeline"]
    assert timelines == ["2", "1", "0"]


def test_of_many_ranks_the_slowest_are_shown_and_the_rest_is_named(tmp_path: Path) -> None:
    page = parts_of(write_job(tmp_path / "run", ranks=10, batches=3))
    tabs = [named["aria-controls"] for _, named in page.elements if named.get("role") == "tab"]
    assert tabs == [f"run-{rank}" for rank in range(9, 1, -1)]
    assert "each of the 8 ranks that wait longest; 2 more" in page.words


def test_spans_that_are_left_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "source")
    assert "Not all spans are drawn" not in parts_of(run).words
    monkeypatch.setattr("iobench.report.timeline.page_payload.SPAN_LIMIT", 60)
    page = parts_of(run)
    assert "this page holds 60 of 162." in page.words
    assert wrong_figures(page.figures) == []


def test_epochs_have_a_row_each(tmp_path: Path) -> None:
    run = write_run(tmp_path / "source", batches=40)
    table = parts_of(run).words.partition("Epoch by epoch")[2]
    (first, second, third) = epoch_figures(open_runs(run)[0].of_rank())
    assert [each.part.n_batches for each in (first, second, third)] == [16, 16, 8]
    assert first.wait is not None
    row = (first.wait.mean_ns, first.wait.median_ns)
    assert "".join(f"{each / 1e6:.3f}" for each in row) in table
    assert "Epoch by epoch" not in parts_of(write_run(tmp_path / "short", batches=9)).words


@pytest.mark.parametrize("batches", [0, 1])
def test_a_killed_run_has_a_page(tmp_path: Path, batches: int) -> None:
    page = parts_of(write_run(tmp_path / "source", killed=True, batches=batches))
    assert wrong_figures(page.figures) == []
    assert page.texts["h2"][0] == "Verdict"


def test_without_a_run_there_is_no_page() -> None:
    with pytest.raises(ProfileError, match="no run to report"):
        render_page([])


def test_names_cannot_do_anything(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "source",
        dataset=HOSTILE,
        files_hint=f"{HOSTILE}\udcff\u2028",
        command=HOSTILE,
        machine={HOSTILE: HOSTILE},
        compute={"forward_ns": 10**6, "backward_ns": 0, "source": HOSTILE},
    )
    text = render_page(open_runs(run))
    text.encode()  # no surrogate is left
    page = PageParts(text)
    assert [sign for sign in ABSENT if sign in text] == []
    assert {tag for tag, _ in page.elements}.isdisjoint({"img", "iframe", "object", "embed"})
    assert all(not name.startswith("on") for _, named in page.elements for name in named)
    assert page.document["runs"][0]["dataset"] == HOSTILE
    assert "\\x1b[2J\\x00\\u202egpj" in page.words


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


def write_page(path: Path, run: Path) -> None:
    write_document(report_document(open_runs(run)), path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "source")
    path = tmp_path / "pages" / "page.html"
    path.parent.mkdir()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"page\.html: cannot be written \(No space left"):
            write_page(path, run)
        assert list(path.parent.iterdir()) == []
    write_page(path, run)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError):
        write_page(path, run)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_without_jinja_the_line_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "source")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'jinja2>=3.1'"):
        render_page(open_runs(run))


def test_the_command_writes_a_page_beside_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = write_run(tmp_path / "source"), tmp_path / "page.html"
    assert main(["report", str(run), "--html", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "grib as source" in out
    assert f"wrote {path} (" in err.replace("\n", "")
    assert "open it in a browser" in err
    assert html.unescape(path.read_text()).startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "source")
    assert main(["report", str(run), "--html", str(tmp_path)]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_without_spans_has_a_page(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", {"dataset": "grib", "format": "source", "workers": 0})
    page = parts_of(tmp_path / "run")
    assert page.texts["h2"][0] == "Verdict"
    assert "Exposed I/O:" in page.words
    profile = replace(open_profile(tmp_path / "run"), config={})
    assert "unnamed dataset" in PageParts(render_page([Run(profile)])).words
