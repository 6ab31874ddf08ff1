"""``iobench compare`` on longer runs: ratios, intervals, turns, groups, and what is refused."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_head
from iobench.testing import FakeClock

US = 1_000
MACHINE = {"host": "one", "cpus": 2, "cpu_model": "x", "memory_nbytes": 10**9}
HOSTILE = "<script>alert(1)</script>"


def made(
    path: Path,
    *,
    n_steps: int = 200,
    read_us: float = 400,
    step_us: float = 600,
    seed: int = 0,
    n_rounds: int = 1,
    offset_ns: int = 0,
    weather: object = None,
    drift: float = 0.0,
    stage: str = "",
    ended: bool = True,
    **changed: Any,
) -> Path:
    """Return a serial run whose reads vary by a tenth; rounds begin every second."""
    config: dict[str, Any] = {
        "dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1,
        "sample_nbytes": 8, "n_samples": n_steps, "machine": MACHINE,
        "compute": {"forward_ns": 0, "backward_ns": int(step_us * US)},
    }  # fmt: skip
    directory = RunDirectory.create(path, config | changed)
    recorder = directory.recorder(role="consumer", clock=FakeClock(offset_ns))
    rng = np.random.default_rng(seed)
    nbytes = 8 * int((config | changed)["batch_size"] or 1)
    number = {text: recorder.string(text) for text in ("consumer", "shutdown", "round", stage)}
    per_round = n_steps // n_rounds
    for turn in range(n_rounds):
        begun = now = offset_ns + turn * 10**9
        slower = 1.0 if weather is None else float(np.asarray(weather)[turn])
        for batch in range(turn * per_round, (turn + 1) * per_round):
            varied = 1 + 0.1 * rng.standard_normal() + drift * batch / n_steps
            read_ns = int(read_us * US * slower * varied)
            end = now + max(read_ns, 1)
            recorder.emit(Kind.READ, now, end, batch=batch, epoch=0, label=number[stage])
            recorder.emit(
                Kind.WAIT, now, end, nbytes=nbytes, batch=batch, epoch=0, detail=number["consumer"]
            )
            now = end + int(step_us * US)
        recorder.emit(Kind.WAIT, now, now, label=number["shutdown"])
        recorder.emit(Kind.OTHER, begun, now, sample=turn, label=number["round"])
    if ended:
        recorder.close()
    return directory.path


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["compare", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    return found.err


def figures(found: dict[str, Any], at: int = 0) -> dict[str, dict[str, Any]]:
    return {each["figure"]: each for each in found["comparisons"][at]["figures"]}


def test_ratios_have_intervals_and_swap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made(tmp_path / "a", seed=1), made(tmp_path / "b", read_us=480, seed=2)
    there, back = (figures(document(capsys, *pair)) for pair in ((a, b), (b, a)))
    wait = there["wait_ns"]
    assert 1.15 < wait["low"] < wait["ratio"] < wait["high"] < 1.25
    assert wait["differs"] is True
    assert wait["values"][1] / wait["values"][0] == pytest.approx(wait["ratio"])
    assert there["exposed:read"]["ratio"] == pytest.approx(wait["ratio"])
    assert there["busy:read"]["ratio"] == pytest.approx(wait["ratio"])
    assert there["samples_per_s"]["ratio"] == pytest.approx(1 / there["sample_ns"]["ratio"])
    assert there["compute_ns"]["ratio"] == 1
    for key, figure in there.items():
        if figure["ratio"] is not None:
            assert back[key]["ratio"] == pytest.approx(1 / figure["ratio"])
            assert back[key]["low"] == pytest.approx(1 / figure["high"])
    assert document(capsys, a, b)["comparisons"][0]["basis"] == "stretches"


def test_a_run_against_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made(tmp_path / "a")
    for figure in figures(document(capsys, a, a)).values():
        if figure["ratio"] is not None:
            assert figure["low"] <= figure["ratio"] == 1 <= figure["high"]
            assert figure["differs"] is False
    text = text_of(capsys, a, a)
    assert "For the whole loop there is no difference that these runs can resolve." in text
    assert "These runs were made one after the other. An interval covers what varies within" in text


def test_steps_that_depend_on_each_other_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b", drift=2)
    text = text_of(capsys, a, b)
    assert (
        "Steps of B are correlated over long spells, so its intervals are probably too narrow"
    ) in text
    assert "Steps of A" not in text


def test_turns_are_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weather = [1, 3, 1, 5, 1, 1, 2, 1]
    both = tmp_path / "both"
    common: dict[str, Any] = {"n_rounds": 8, "weather": weather, "step_us": 100}
    made(both / "z", position=0, **common)
    made(both / "a", position=1, read_us=440, seed=3, offset_ns=5 * 10**8, **common)
    found = document(capsys, both)
    assert found["interleaved"] is True
    assert [Path(run["run"]).name for run in found["runs"]] == ["z", "a"]
    assert found["comparisons"][0]["n_cells"] == [8, 8]
    wait = figures(found)["wait_ns"]
    assert 1.05 < wait["low"] < wait["high"] < 1.15
    assert wait["values"][1] / wait["values"][0] == pytest.approx(wait["ratio"])
    assert "took turns in one job. Ratios are of 8 paired turns" in text_of(capsys, both)
    # The same times on another machine's clock are no turns, and then the weather hides it.
    made(tmp_path / "later", read_us=440, seed=3, offset_ns=10**12, **common)
    apart = figures(document(capsys, both / "z", tmp_path / "later"))["wait_ns"]
    assert apart["differs"] is False


@pytest.mark.parametrize(
    ("n_rounds", "said"), [(1, "one after the other"), (3, "too few of them (3)")]
)
def test_too_few_turns_are_not_paired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_rounds: int, said: str
) -> None:
    made(tmp_path / "both" / "a", position=0, n_rounds=n_rounds, step_us=100)
    made(tmp_path / "both" / "b", position=1, n_rounds=n_rounds, step_us=100, offset_ns=5 * 10**8)
    assert document(capsys, tmp_path / "both")["comparisons"][0]["basis"] == "stretches"
    assert said in text_of(capsys, tmp_path / "both")


def test_groups_tell_what_differs_between_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [made(tmp_path / f"a{n}", read_us=400 + 20 * n, seed=n) for n in range(3)]
    fast = [made(tmp_path / f"b{n}", read_us=200 + 9 * n, format="zarr") for n in range(3)]
    found = document(capsys, *slow, *fast, "--group")
    assert [run["group"] for run in found["runs"]] == [0, 0, 0, 1, 1, 1]
    assert (found["comparisons"][0]["basis"], found["samples"]) == ("runs", [])
    wait = figures(found)["wait_ns"]
    assert 0.4 < wait["low"] < 0.5 < wait["high"] < 0.57
    within = figures(document(capsys, slow[0], fast[0]))["wait_ns"]
    assert within["high"] - within["low"] < wait["high"] - wait["low"]
    text = text_of(capsys, *slow, *fast, "--group")
    assert "what differs between runs of one configuration: 3 of A, 3 of B." in text
    assert "is the only run of its configuration" in refused(capsys, *slow, fast[0], "--group")
    assert "have 1 configuration(s)" in refused(capsys, *slow, "--group")


def test_what_would_say_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made(tmp_path / "a")
    other = made(tmp_path / "other", dataset="another")
    tiny = made(tmp_path / "tiny", stand_in=True, tiny=True)
    larger = made(tmp_path / "larger", sample_nbytes=4)
    for path, message in (
        (other, "are of different datasets, own and another; --anyway compares them nevertheless"),
        (tiny, "uses tiny stand-ins, the other data of the real size; --anyway"),
        (larger, "are of different samples, 8 B and 4 B each; --anyway"),
    ):
        assert message in refused(capsys, a, path)
        assert document(capsys, a, path, "--anyway")["waved"]
        assert "Compared nevertheless: " in text_of(capsys, a, path, "--anyway")


def test_where_there_is_nothing_nothing_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made(tmp_path / "a")
    empty = made(tmp_path / "empty", n_steps=0)
    nobody = RunDirectory.create(tmp_path / "nobody", {}).path
    for path in (empty, nobody):
        for more in ([], ["--anyway"]):
            assert f"{path}: no batch was delivered; there is nothing" in refused(
                capsys, a, path, *more
            )
    newer = RunDirectory.create(tmp_path / "newer", {"version": 99}).path
    config = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps(config | {"version": 99}))
    assert "newer" in refused(capsys, a, newer)
    (newer / "run.json").write_text("{")
    assert "run.json" in refused(capsys, a, newer)


def test_damaged_spans_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    (file,) = (path for path in b.rglob("*") if path.suffix == ".spans")
    data = file.read_bytes()
    cut = data.rindex(np.int64(150).tobytes())
    file.write_bytes(data[:cut])
    message = refused(capsys, a, b)
    assert f"{b}: " in message
    assert "waits may be missing; --anyway compares them" in message
    assert document(capsys, a, b, "--anyway")["waved"]


def test_a_run_that_still_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made(tmp_path / "a")
    b = made(tmp_path / "b", ended=False)
    text = text_of(capsys, a, b)
    assert "B: 1 of its processes were killed or are still running; what they had" in text
    assert "time per step 1.00 ms" in text


def test_other_batches_leave_what_is_per_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made(tmp_path / "a")
    step = {"forward_ns": 0, "backward_ns": 600 * 2 * US}
    b = made(tmp_path / "b", batch_size=2, read_us=800, step_us=1200, compute=step, n_samples=400)
    found = figures(document(capsys, a, b))
    assert "step_ns" not in found
    assert found["sample_ns"]["ratio"] == pytest.approx(1, abs=0.02)
    assert found["exposed:read"]["name"] == "read, exposed per sample"
    assert found["exposed:read"]["ratio"] == pytest.approx(1, abs=0.02)
    told = " ".join(text_of(capsys, a, b).split())
    assert "Note that batch sizes differ, so a step is a different amount of work." in told


def test_other_steps_leave_what_is_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made(tmp_path / "a")
    b = made(tmp_path / "b", step_us=900, compute={"forward_ns": 0, "backward_ns": 900 * US})
    found = figures(document(capsys, a, b))
    assert found["samples_per_s"]["withheld"] == "other step"
    assert found["samples_per_s"]["ratio"] is found["exposed:read"]["ratio"] is None
    assert found["busy:read"]["ratio"] == pytest.approx(1, abs=0.02)
    text = text_of(capsys, a, b)
    assert "Withheld: the emulated compute time per sample differs" in text
    assert "step_ns 600 us | 900 us" in text
    assert figures(document(capsys, a, b, "--anyway"))["step_ns"]["ratio"] == pytest.approx(
        1.3, abs=0.02
    )


def test_other_machines_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made(tmp_path / "a")
    b = made(tmp_path / "b", machine=MACHINE | {"host": "two"})
    c = made(tmp_path / "c", machine=MACHINE | {"host": "two", "cpus": 8})
    assert "Different machine: B ran on another host of the same type." in text_of(capsys, a, b)
    assert (
        "B ran elsewhere (host, cpus), so the ratios combine the effects of machine and"
    ) in text_of(capsys, a, c)
    found = document(capsys, a, b, c)
    assert [each["other_machine"] for each in found["comparisons"]] == [["host"], ["host", "cpus"]]
    assert found["differences"]["cpus"] == [2, 2, 8]


def test_ranks_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = made(tmp_path / "one")
    two = made(tmp_path / "two", world_size=2)
    other = made(tmp_path / "other", seed=1, read_us=500)
    directory = RunDirectory.open(two)
    recorder = directory.recorder(role="consumer", rank=1, clock=FakeClock(0))
    recorder.close()
    # A rank without a step leaves nothing that all have.
    assert "some of its training processes got no batch" in refused(capsys, one, two)
    (second,) = (path for path in directory.span_files() if read_head(path).identity.rank == 1)
    second.unlink()
    maker = RunDirectory.open(two).recorder(role="consumer", rank=1, clock=FakeClock(0))
    consumer = maker.string("consumer")
    now = 0
    for batch in range(200):
        maker.emit(Kind.READ, now, now + 600 * US, batch=batch, epoch=0)
        maker.emit(Kind.WAIT, now, now + 600 * US, nbytes=8, batch=batch, epoch=0, detail=consumer)
        now += 1200 * US
    maker.emit(Kind.WAIT, now, now, label=maker.string("shutdown"))
    maker.emit(Kind.OTHER, 0, now, sample=0, label=maker.string("round"))
    maker.close()
    found = document(capsys, one, two, other)
    assert [run["ranks"] for run in found["runs"]] == [1, 2, 1]
    assert found["differences"]["ranks"] == [1, 2, 1]
    several = figures(found)
    # Steps of 1.0 and of 1.2 ms, at once: of a step 1.1 ms, and together almost twice as fast.
    assert several["step_ns"]["values"][1] == pytest.approx(1.1e6, rel=0.01)
    assert several["wait_ns"]["values"][1] == pytest.approx(5e5, rel=0.02)
    assert several["samples_per_s"]["ratio"] == pytest.approx(2 / 1.1, rel=0.02)
    assert found["runs"][1]["steady"]["samples_per_s"] == several["samples_per_s"]["values"][1]


class Seen(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [name for name, _ in attrs if name in ("src", "href", "onload")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_page_with_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made(tmp_path / "a", stage=HOSTILE, format=HOSTILE)
    b = made(tmp_path / "b&<b>", stage=HOSTILE, read_us=800)
    page = tmp_path / "page.html"
    assert main(["compare", str(a), str(b), "--html", str(page)]) == 0
    found = capsys.readouterr()
    assert f"wrote {page} (" in found.err
    assert "B against A" in found.out
    seen = Seen()
    seen.feed(page.read_text())
    assert {"svg", "rect", "table"} <= set(seen.tags)
    assert not {"link", "img", "iframe"} & set(seen.tags)
    assert set(seen.addresses) <= {"href"}
    assert "uPlot" not in page.read_text()  # nothing is drawn by a script
    assert f"read ({HOSTILE})" in seen.words
    bars = re.findall(r'<svg class="bar".*?</svg>', page.read_text(), re.DOTALL)
    found_bars = [re.findall(r'<rect class="(\w+)" x="([\d.]+)"', bar) for bar in bars]
    told = [each for each in figures(document(capsys, a, b)).values() if any(each["values"])]
    assert len(found_bars) == len(told)
    for bar, figure in zip(found_bars, told, strict=True):
        kinds = {kind for kind, _ in bar} - {"gap"}
        assert kinds == {"one", "worse" if figure["differs"] else "none"}
    ones = {x for bar in found_bars[:5] for kind, x in bar if kind == "one"}
    assert len(ones) == 1  # a line through all rows of a table


def test_as_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made(tmp_path / "a", stage="a|b"), made(tmp_path / "b", stage="a|b", read_us=800)
    assert main(["compare", str(a), str(b), "--markdown"]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("| read")]
    assert rows
    assert {row.count("|") for row in rows} == {7}
    assert main(["compare", str(a), str(b), "--markdown", "--json"]) == 1


def test_a_terminal_of_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made(tmp_path / "a", stage="of_a_long_name", step_us=7.777)
    b = made(tmp_path / "b", stage="of_a_long_name", read_us=123_456, step_us=7.777)
    assert main(["compare", str(a), str(b), str(a)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
