"""Files of readings, as they are, cut off anywhere, or damaged."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import ProfileError
from iobench.profiles.reading import open_profile
from iobench.recording.energy_file import read_energy
from iobench.recording.run_directory import RunDirectory

sys.path.append(str(Path(__file__).parents[1] / "support"))

from energy_files import source, write_energy

S = 10**9
WRAPS = 100_000_000


PACKAGE = source("cpu:0", title="package-0", wraps_uj=WRAPS)


def write(run, *rows, sources=(PACKAGE,), end=b""):
    return write_energy(run, *rows, sources=sources, host="a", end=end)


def series(run):
    (found,) = read_energy(run)
    return found.series[0]


def test_readings_count_from_the_first(tmp_path):
    write(tmp_path, [0, 5, 700], [S, 7, 900], [2 * S, 9, 900])
    found = series(tmp_path)
    assert found.time_ns.tolist() == [5, S + 7, 2 * S + 9]
    assert found.energy_uj.tolist() == [0, 200, 200]


def test_a_counter_that_begins_again_at_its_largest_value_has_counted_on(tmp_path):
    write(tmp_path, [0, 0, WRAPS - 30], [S, 0, 20], [2 * S, 0, 50])
    found = series(tmp_path)
    assert (found.energy_uj.tolist(), found.n_resets) == ([0, 50, 80], 0)


def test_a_counter_that_was_set_back_counts_from_there(tmp_path):
    write(tmp_path, [0, 0, 500], [10**4, 0, 20], [S, 0, 60])
    found = series(tmp_path)
    # To have wrapped it would have taken 10 MW.
    assert (found.energy_uj.tolist(), found.n_resets) == ([0, 20, 60], 1)
    write(tmp_path, [0, 0, 500], [S, 0, 20], [2 * S, 0, 60], sources=[source()])
    found = series(tmp_path)
    assert (found.energy_uj.tolist(), found.n_resets) == ([0, 20, 60], 1)


def test_readings_that_failed_lie_between_others(tmp_path):
    failed = {"failed": 0, "reason": "gpu is lost"}
    write(tmp_path, [0, 0, 5], failed, [S, 0, None], [2 * S, 0, 9])
    (found,) = read_energy(tmp_path)
    assert found.series[0].energy_uj.tolist() == [0, 4]
    assert found.series[0].n_failed == 1
    assert [each.reason for each in found.unreadable] == ["package-0: gpu is lost, during the run"]


@pytest.mark.parametrize(
    "line",
    [b"rubbish\n", b"\0\0\0\n", b"[1]\n", b"[1,0,-5]\n", b'["a",0,1]\n', b"[1e3,0,5]\n",
     b"[9223372036854775808,0,1]\n", b"[true,0,1]\n", b"null\n", b"[0,0,7]\n"],
)  # fmt: skip
def test_a_line_that_cannot_be_is_counted_and_left_out(tmp_path, line):
    write(tmp_path, [S, 0, 5], end=line + b"[2000000000,0,9]\n")
    (found,) = read_energy(tmp_path)
    assert (found.n_damaged, found.series[0].energy_uj.tolist()) == (1, [0, 4])


@pytest.mark.parametrize(
    "text", ["", "{}\n", "[]\n", "rubbish\n", '{"version": 1, "sources": 5}\n']
)
def test_a_file_without_its_beginning_tells_nothing_and_says_why(tmp_path, text):
    path = write(tmp_path)
    path.write_text(text)
    if text == "{}\n":
        with pytest.raises(ProfileError, match="readings of version None"):
            read_energy(tmp_path)
        return
    (found,) = read_energy(tmp_path)
    assert found.series == ()
    reason = "the file of the readings is damaged" if text else "nothing was read yet"
    assert {each.reason for each in found.unreadable} == {reason}


def test_a_later_version_is_an_error_that_names_the_file(tmp_path):
    run = RunDirectory.create(tmp_path / "run", {})
    path = write(run.path)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ProfileError, match=r"readings of version 2, expected 1; use the iobench"):
        open_profile(run.path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("cut")
    rows = [[number * S, 0, 10 * number, 3, 5] for number in range(1, 20)]
    return write(path, *rows, {"readings": 19, "cpu_ns": 190}, sources=[PACKAGE, source()])


@given(st.data())
def test_a_file_cut_off_anywhere_tells_what_is_left_of_it(whole, data):
    content = whole.read_bytes()
    head = content.index(b"\n")
    cut = data.draw(st.integers(0, len(content)))
    other = whole.parent / "other" / "energy" / "cut.jsonl"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(content[:cut])
    (found,) = read_energy(other.parents[1])
    n_whole = max(0, content[:cut].count(b"\n") - 1)
    assert found.n_readings == min(19, n_whole)
    assert found.n_damaged == 0
    assert bool(found.series) == (cut > head)
    for each in found.series:
        assert len(each.time_ns) == found.n_readings
        assert (np.diff(each.energy_uj) >= 0).all()
