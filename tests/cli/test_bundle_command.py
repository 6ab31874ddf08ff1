"""``iobench bundle``: written whole or not at all, shown before it is passed on."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from iobench.cli import main

sys.path.append(str(Path(__file__).parents[1] / "support"))

from named_runs import ENVIRONMENT, HOST, USER, write_run

PAGE = "iobench.report.renderers.html_page.HtmlRenderer.render"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("iobench.recording.recorder.host_name", lambda: HOST)
    monkeypatch.setattr(
        "iobench.report.renderers.html_page.HtmlRenderer.render", lambda *_: "<p>\n"
    )
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return write_run(tmp_path / "run").path


def test_a_bundle_is_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b.tar.gz"
    assert main(["bundle", str(run), "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    with tarfile.open(out) as archive:
        names = {name.removeprefix("iobench-bundle/") for name in archive.getnames()}
        versions = json.load(archive.extractfile("iobench-bundle/versions.json") or sys.stdin)
    assert set(told["files"]) == names
    assert set(versions) == {"iobench", "python", "extras", "climetlab_plugins"}
    assert told["nbytes"] == out.stat().st_size
    assert told["replaced"]["user"]["names"] >= 1
    assert main(["bundle", str(run), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert "names replaced; check them with --show" in said.out
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".part")] == []


def test_what_would_be_replaced_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", str(run), "--show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (mine,) = (line for line in lines if line.endswith(f"user: {USER}"))
    assert mine.split()[0].startswith("user-")
    assert any(line.endswith("because reports use this word)") for line in lines)
    assert main(["bundle", str(run), "--show", "--json", "--keep", "magrathea"]) == 0
    rows = json.loads(capsys.readouterr().out)["replacements"]
    assert {row["name"] for row in rows} >= {USER, HOST}
    assert "magrathea" not in {row["name"] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "expected either -o FILE or --show"),
        (["--show", "-o", "b.tar.gz"], "expected either -o FILE or --show"),
        (["-o", "b.zip"], "expected a name that ends with .tar.gz"),
        (["-o", "no/such/b.tar.gz"], "cannot be written"),
        (["-o", "b.tar.gz", "--keep", "hotblack"], "--keep hotblack: is nowhere in the run"),
    ],
)
def test_bad_input_is_one_line(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: str,
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["bundle", str(run), *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line
    assert not list(run.parent.glob("b.*"))


def test_a_report_is_printed_as_markdown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## python ")
    assert "| ---------" in text
    assert "<details>\n<summary>How far to trust these figures</summary>\n" in text
    assert main(["report", str(run), "--markdown", "--json"]) == 1
    assert "--json, --markdown and --as all write to stdout" in capsys.readouterr().err
