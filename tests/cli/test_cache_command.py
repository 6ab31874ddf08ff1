from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.cli import main


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder in which iobench has made a stand-in."""
    assert main(["synthesize", "maelstrom-ens10", str(tmp_path / "mine"), "--tiny"]) == 0
    return tmp_path


def test_what_iobench_made_is_listed_and_removed(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["cache", "--store-dir", str(made), "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]  # and what other tests made elsewhere
    (item,) = [each for each in items if Path(each["path"]).is_relative_to(made)]
    assert item["kind"] == "stand-in"
    assert item["nbytes"] > 1_000_000
    (made / "mine.txt").write_text("the user's own")
    assert main(["cache", "--store-dir", str(made), "--remove", item["path"]]) == 0
    assert [path.name for path in made.iterdir()] == ["mine.txt"]


def test_what_iobench_did_not_make_is_never_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    assert main(["cache", "--store-dir", str(tmp_path), "--remove", str(tmp_path / "data")]) == 1
    assert "iobench made nothing there" in capsys.readouterr().err
    assert (tmp_path / "data").is_dir()
