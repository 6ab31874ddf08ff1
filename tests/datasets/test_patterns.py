"""A user's own layout: which files match, which date each is of, which published file each is."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.datasets.locate import FileLocator
from iobench.datasets.patterns import FilePattern
from iobench.errors import MissingFileError, OptionError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """An empty folder to be in, and a function that puts files there."""
    monkeypatch.chdir(tmp_path)

    def put(*names):
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(name)

    return put


@pytest.mark.parametrize(
    ("pattern", "dates"),
    [
        ("ens/out.{year}{month}{day}.grib", ["19980101", "19990104"]),
        # Folders may be dates and be told twice.
        ("{year}/{month}/out.{year}{month}.nc", ["199801", "199912"]),
    ],
)
def test_dates_are_told_by_the_placeholders(tree, pattern, dates):
    tree("ens/out.19980101.grib", "ens/out.19990104.grib", "ens/out.1999.grib", "ens/x.grib")
    tree("1998/01/out.199801.nc", "1998/02/out.199801.nc", "1999/12/out.199912.nc")
    found = ["".join(known.values()) for known in FilePattern(pattern).files.values()]
    assert found == dates
    with pytest.raises(MissingFileError, match=r"--files /nowhere/.*: no file matches"):
        _ = FilePattern(f"/nowhere/{pattern}").files


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.nc", ["a.nc"]),
        ("**/*.nc", ["a.nc", "b/a.nc", "b/c/d.nc"]),
        ("b/?.nc", ["b/a.nc"]),
        ("b/[!x].nc", ["b/a.nc"]),
        ("b/c/d.nc", ["b/c/d.nc"]),
    ],
)
def test_globs_are_as_in_a_shell(tree, pattern, found):
    tree("a.nc", "b/a.nc", "b/c/d.nc", "b/x.nc")
    names = [str(path) for path in FilePattern(pattern).files]
    assert [name for name in names if "x" not in name] == found


@pytest.mark.parametrize("pattern", ["out.{hour}.nc", "", "{}.nc"])
def test_an_unknown_placeholder_lists_the_known_ones(pattern):
    with pytest.raises(OptionError, match=r"expected \{year\}, \{month\}, \{day\}"):
        FilePattern(pattern)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/b/2020/20200301T03Z.nc", "yr/2020-03-01.nc"),
        ("https://h/b/ml_20200302_00.nc", "yr/2020-03-02.nc"),
        ("https://h/b/20200303T15Z.nc", None),
        ("https://h/b/other.nc", None),
    ],
)
def test_a_published_file_is_found_by_its_date(tree, url, name):
    tree("yr/2020-03-01.nc", "yr/2020-03-02.nc")
    found = FilePattern("yr/{year}-{month}-{day}.nc").find(url)
    assert found == (None if name is None else Path(name))


def test_two_files_for_one_published_one_are_an_error(tree):
    tree("b/2020-05.nc", "c/2020-05.nc")
    with pytest.raises(OptionError, match=r"2 files stand for down_2020-05\.nc"):
        FilePattern("*/{year}-{month}.nc").find("https://h/down_2020-05.nc")


def test_the_locator_looks_in_the_folder_first_and_nowhere_else(tree, tmp_path):
    tree("data/down_2020-05.nc", "own/2020-05.nc", "own/2020-06.nc")
    locator = FileLocator(
        cache_dir=tmp_path, data_dir=Path("data"), pattern=FilePattern("own/{year}-{month}.nc")
    )
    urls = [f"https://h/b/down_2020-0{month}.nc" for month in (5, 6, 7)]
    assert locator.find(urls) == [Path("data/down_2020-05.nc"), Path("own/2020-06.nc"), None]
    assert "--data-dir data" in locator.searched()
    assert "--files own/{year}-{month}.nc" in locator.searched()
    assert locator.n_found == 2
