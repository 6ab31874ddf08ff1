from __future__ import annotations

import getpass
import json
import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))
from other_user import as_other_user, folder_for_all

from iobench.cli import main


@pytest.fixture
def made() -> Iterator[Path]:
    """A folder in which iobench has made a stand-in, which others may read."""
    with folder_for_all() as folder:
        assert main(["synthesize", "maelstrom-ens10", str(folder / "mine"), "--tiny"]) == 0
        yield folder


def _items(made: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["cache", "--store-dir", str(made), *more, "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    return [each for each in items if Path(each["path"]).is_relative_to(made)]


def _last_used(folder: Path, days_ago: int) -> None:
    ns = time.time_ns() - days_ago * 86_400 * 10**9
    for file in folder.rglob("*"):
        os.utime(file, ns=(ns, ns))


def test_what_iobench_made_is_listed_and_removed(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (item,) = _items(made, capsys)
    assert item["kind"] == "stand-in"
    assert int(str(item["nbytes"])) > 1_000_000
    (made / "mine.txt").write_text("the user's own")
    assert main(["cache", "--store-dir", str(made), "--remove", str(item["path"])]) == 0
    assert [path.name for path in made.iterdir()] == ["mine.txt"]


def test_all_and_a_path_are_both_removed_or_neither(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = ["cache", "--store-dir", str(made / "x" / ".." / "."), "--older-than", "30d"]
    _last_used(made / "mine", 40)
    capsys.readouterr()
    assert main([*every, "--remove", "all", "--remove", str(made / "none")]) == 1
    assert (made / "mine").is_dir()
    said = "expected the path of an item that 'iobench cache' lists for these options"
    assert capsys.readouterr().err == f"iobench: {made}/none: {said}\n"
    assert main(every) == 0
    assert f"{made}/mine" in " ".join(capsys.readouterr().out.split())  # not by way of x/..
    assert main([*every, "--remove", "all"]) == 0
    assert not (made / "mine").exists()


def test_what_was_not_used_for_long_is_listed_and_only_then_removed(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known truth: one item that was last used 40 days ago, and one of now."""
    shutil.copytree(made / "mine", made / "new")
    _last_used(made / "mine", 40)
    (old,) = _items(made, capsys, "--older-than", "30d")
    assert old["path"] == str(made / "mine")
    assert old["owner"] == pwd.getpwuid(os.geteuid()).pw_name
    assert 39.9 < (time.time_ns() - int(str(old["changed_ns"]))) / 86_400e9 < 40.1
    assert _items(made, capsys, "--older-than", "41d") == []
    # What is named, and was used since, stays.
    new = ["cache", "--store-dir", str(made), "--older-than", "5w", "--remove", str(made / "new")]
    assert main(new) == 1

    # Elsewhere other tests may have made something: nothing of that is so old.
    assert _items(made, capsys, "--older-than", "5w", "--remove", "all") == []
    assert [each.name for each in made.iterdir()] == ["new"]


@pytest.mark.long
def test_what_is_of_another_user_is_told_and_left(made: Path) -> None:
    """Neither named nor with all the rest does it go, and it is whole afterwards."""
    before = sorted(str(path) for path in (made / "mine").rglob("*"))
    run = [sys.executable, "-m", "iobench", "cache", "--store-dir", str(made)]
    told = as_other_user(made, *run)
    assert told.returncode == 0, told.stderr
    assert getpass.getuser() in told.stdout
    every = as_other_user(made, *run, "--remove", "all")
    assert every.returncode == 0, every.stderr
    named = as_other_user(made, *run, "--remove", made / "mine")
    assert named.returncode == 1
    assert named.stderr.count("\n") == 1
    assert sorted(str(path) for path in (made / "mine").rglob("*")) == before


def test_a_user_without_name_and_home_has_a_place_too(made: Path) -> None:
    """As a container's, told by a number alone."""
    run = [sys.executable, "-m", "iobench", "profile", "maelstrom-ens10"]
    found = as_other_user(made, *run, "--data-dir", made / "mine", "--batches", "3", user=54321)
    assert found.returncode == 0, found.stderr
    shutil.rmtree(Path(tempfile.gettempdir(), "iobench-54321"), ignore_errors=True)
