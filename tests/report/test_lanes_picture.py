"""Lanes of loading and of storage on one axis, of real runs with real Darshan logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from ground_truth_profiles import profile_of_ground_truth

from iobench.analysis.placement.placing import place_segments
from iobench.analysis.run import Run
from iobench.cli.report_command import _stretch as stretch_of
from iobench.errors import OptionError, StorageError
from iobench.recording.kinds import Kind
from iobench.report.timeline.lanes_picture import (
    EXPOSED,
    HIDDEN,
    LEGEND,
    UNKNOWN,
    LaneBars,
    draw_lanes,
    lanes_of,
)
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from iobench.profiles.contents import Profile

LOGS = Path(__file__).parents[1] / "data" / "darshan"


def run_of(name: str) -> tuple[Profile, StorageTrace]:
    pytest.importorskip(
        "darshan", reason="PyDarshan reads the logs: pip install 'iobench[darshan]'"
    )
    from iobench.storage.run_traces import read_traces

    folder = LOGS / name
    return profile_of_ground_truth(folder / "ground_truth.json"), read_traces([folder])


@pytest.fixture(scope="module")
def raw() -> tuple[Profile, StorageTrace]:
    """``open().read()`` in two forked workers."""
    return run_of("s1_raw_fork")


def lane_texts(lanes: tuple[LaneBars, ...]) -> list[str]:
    return [lane.name for lane in lanes]


def test_each_process_has_its_storage_below(raw: tuple[Profile, StorageTrace]) -> None:
    profile, trace = raw
    lanes = lanes_of(Run(profile, trace), place_segments(profile, trace))
    assert lane_texts(lanes)[-4:] == [
        "worker-0",
        "  Darshan",
        "worker-1",
        "  Darshan",
    ]
    stages, storage = lanes[-4:-2]
    assert len(storage.start_ns) == 40
    assert storage.band_ns > 0
    assert set(storage.colour.tolist()) == {UNKNOWN}
    # Every segment of a sample's file lies under a stage.
    inside = (stages.start_ns[None] <= storage.start_ns[:, None]) & (
        storage.end_ns[:, None] <= stages.end_ns[None]
    )
    assert inside.any(axis=1).all()


def test_segments_are_coloured_by_what_was_waited_for(raw: tuple[Profile, StorageTrace]) -> None:
    profile, trace = raw
    for share, colour in ((0.0, HIDDEN), (1.0, EXPOSED)):
        exposed = np.full(len(profile.spans), share)
        lanes = lanes_of(Run(profile, trace), place_segments(profile, trace, exposed))
        assert set(lanes[-1].colour.tolist()) == {colour}


def test_files_read_by_fread_are_hatched_from_first_to_last() -> None:
    profile, trace = run_of("s2_npload_spawn")
    lanes = lanes_of(Run(profile, trace), place_segments(profile, trace))
    storage = lanes[-1]
    assert int(storage.hatched.sum()) == 20
    assert int((~storage.hatched).sum()) == 20, "strays are no reads"


def test_a_process_without_a_log_keeps_its_lane(raw: tuple[Profile, StorageTrace]) -> None:
    profile, trace = raw
    left = StorageTrace(tuple(each for each in trace.processes if each.pid != 24153))
    lanes = lanes_of(Run(profile, left), place_segments(profile, left))
    names = lane_texts(lanes)
    place = names.index("worker-0")
    assert names[place + 1] == "  no Darshan log"
    assert len(lanes[place + 1].start_ns) == 0
    assert names[place + 2] == "worker-1"


def test_without_logs_there_are_stages_alone(raw: tuple[Profile, StorageTrace]) -> None:
    profile, _ = raw
    assert lane_texts(lanes_of(Run(profile))) == [
        "consumer",
        "worker-0",
        "worker-1",
    ]


def test_the_legend_has_the_colours_of_the_bars(raw: tuple[Profile, StorageTrace]) -> None:
    legend = dict(LEGEND)
    for span in ("waiting", Kind.WAIT), ("read", Kind.READ), ("collate", Kind.COLLATE):
        assert legend[span[0]] == span[1].light
    consumer = lanes_of(Run(raw[0]))[0]
    assert set(consumer.colour.tolist()) & {legend["waiting"]}


def make_lane(*bars: tuple[int, int, str]) -> LaneBars:
    start, end, colour = (np.array(column) for column in zip(*bars, strict=True))
    return LaneBars("lane", start, end, colour, np.zeros(len(start), dtype=bool))


def test_bars_closer_than_a_pixel_are_one() -> None:
    lane = make_lane((0, 10, "red"), (12, 20, "red"), (21, 30, "blue"), (50, 60, "blue"))
    thin = lane.drawn(0, 100, 5)
    assert thin.start_ns.tolist() == [0, 21, 50]
    assert thin.end_ns.tolist() == [20, 30, 60]
    assert thin.colour.tolist() == ["red", "blue", "blue"]


def test_a_stretch_of_time_cuts_bars_at_its_ends() -> None:
    lane = make_lane((0, 10, "red"), (12, 20, "red"), (21, 30, "blue")).drawn(5, 15, 0)
    assert lane.start_ns.tolist() == [5, 12]
    assert lane.end_ns.tolist() == [10, 15]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_pictures_are_written(
    raw: tuple[Profile, StorageTrace], tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib", reason="draws: pip install 'iobench[darshan]'")
    profile, trace = raw
    path = tmp_path / f"lanes{suffix}"
    draw_lanes(Run(profile, trace), path, between_s=(0.0, 0.2))
    head = path.read_bytes()[:200]
    assert head.startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")


def test_a_picture_that_cannot_be_finished_leaves_the_old_one(
    raw: tuple[Profile, StorageTrace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="draws: pip install 'iobench[darshan]'")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "lanes.svg"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        draw_lanes(Run(raw[0]), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_drawn_is_said(raw: tuple[Profile, StorageTrace], tmp_path: Path) -> None:
    profile, _ = raw
    with pytest.raises(OptionError, match=r"lanes\.html: expected a name that ends in \.svg"):
        draw_lanes(Run(profile), tmp_path / "lanes.html")
    with pytest.raises(OptionError, match="no span between"):
        draw_lanes(Run(profile), tmp_path / "lanes.svg", between_s=(1e6, 2e6))
    pytest.importorskip("matplotlib", reason="draws: pip install 'iobench[darshan]'")
    with pytest.raises(StorageError, match="cannot be written"):
        draw_lanes(Run(profile), tmp_path / "nowhere" / "lanes.svg")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text").write_text("")
    (tmp_path / "lanes.svg").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        draw_lanes(Run(profile), tmp_path / "lanes.svg")
    with pytest.raises(StorageError, match="cannot be written"):
        draw_lanes(Run(profile), tmp_path / "text" / "lanes.svg")


@pytest.mark.parametrize("name", ["$x_$.py", "<b>\udcff\n\x00.py"])
def test_any_name_makes_a_title(
    raw: tuple[Profile, StorageTrace], tmp_path: Path, name: str
) -> None:
    pytest.importorskip("matplotlib", reason="draws: pip install 'iobench[darshan]'")
    profile = replace(raw[0], config={"script": name})
    draw_lanes(Run(profile), tmp_path / "lanes.svg", between_s=(0.0, 0.2))
    ElementTree.parse(tmp_path / "lanes.svg")


@pytest.mark.parametrize(
    "text", ["a:b", "1:2:3", "2:1", "-1:1", "nan:1", "0:inf", "1e300:1e301", "0:1e-12"]
)
def test_a_stretch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=f"--between {text}: expected seconds"):
        stretch_of(text)
