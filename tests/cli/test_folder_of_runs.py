"""A folder of runs: one profile's formats are one run, anything else is listed, never merged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from iobench.cli import main
from iobench.recording.span_reader import Anchor
from iobench.runs.reading import holds_several
from tests.support.sketched_runs import SketchedRun

if TYPE_CHECKING:
    from pathlib import Path

DAY_NS = 86_400 * 10**9


def made(path: Path, day: int = 0, **config: object) -> Path:
    facts = {"dataset": "own", "format": "source", "framework": "native", "workers": 0,
             "batch_size": 1, "command": "iobench profile own"}  # fmt: skip
    run = SketchedRun(facts, **config)
    run.process = {"anchors": (Anchor(0, 1_700_000_000 * 10**9 + day * DAY_NS),)}
    for batch in range(3):
        run.wait(batch, 6000 * batch, 6000 * batch + 1000)
    run.write(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "runs" / "old", 1)
    made(tmp_path / "runs" / "train-1", 3, kind="script", command="python train.py --lr 1")
    for place, name in enumerate(("source", "numpy")):
        made(tmp_path / "runs" / "both" / name, 2, position=place, turns="x", format=name)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_they_are_listed_newest_first_with_a_line_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder)]) == 0
    _, table, _ = capsys.readouterr().out.split("\n\n")
    words = [line.split()[:2] for line in table.splitlines()]
    assert words == [["train-1", "2023-11-17"], ["both", "2023-11-16"], ["old", "2023-11-15"]]
    assert main(["report", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["listed"]
    assert [each["path"] for each in listed] == [
        str(folder / name) for name in ("train-1", "both", "old")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--html", "page.html"], ["compare"], ["advise"], ["simulate"],
        ["check", "--max-exposed", "5%"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_what_is_of_one_run_says_in_a_line_what_to_do(
    words: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command, *more = words
    assert main([command, str(folder), *more]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"iobench report {folder}" in line


def test_which_runs_took_turns_is_in_their_run_json(tmp_path: Path) -> None:
    def are_one(*configs: dict[str, object]) -> bool:
        parent = tmp_path / str(len(list(tmp_path.iterdir())))
        for number, config in enumerate(configs):
            made(parent / str(number), **config)
        return not holds_several(parent)

    assert are_one({"turns": "a"}, {"turns": "a"})
    assert not are_one({"turns": "a"}, {"turns": "b"})
    assert not are_one({"turns": None}, {"turns": None})
    assert not are_one({"turns": "a"}, {"turns": "a"}, {"turns": None})
    assert are_one({"turns": None})
    # Made before there was such a key: places within one command.
    assert are_one({"position": 0}, {"position": 1})
    assert not are_one({"position": 0}, {"position": 0})
    assert not are_one({"position": 0}, {"position": 1, "command": "another"})
    assert not are_one({"kind": "script"}, {"kind": "script"})
