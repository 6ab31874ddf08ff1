"""``iobench check`` on runs: what passes, what fails, what stays open, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.intervals import RoundRatio, round_ratio
from iobench.analysis.run import Run
from iobench.analysis.step_sums import StepSums
from iobench.cli import main
from iobench.errors import TrialError
from iobench.profiles.reading import open_profile
from iobench.report.json_walk import to_plain
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.subjects.check.exposed_share import ExposedShare, exposed_share
from iobench.subjects.check.gates import (
    Checked,
    Doubt,
    GrowthGate,
    Outcome,
    PairedGate,
    ShareGate,
    can_decide,
    rounds_to_decide,
)
from iobench.subjects.check.section import check_document
from iobench.trials.paired_commands import compare_commands

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import MakeRun

RATIO = st.sampled_from([0.5, 0.9, 0.97, 1.0, 1.02, 1.04, 1.06, 1.2, 2.0])
EXTREMES = [(low, band) for low in (1e-6, 1.0, 1e6) for band in (1e-6, 1.0, 1e6)]
PASSED, ERROR, REGRESSION, OPEN = 0, 1, 3, 4


@pytest.mark.thorough
def test_counts_are_written_and_held_against_other_runs(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    assert main(["check", str(make_run("a")), "--counts", kept]) == ERROR
    assert "no such file; create it from a known good run with --update" in capsys.readouterr().err
    assert main(["check", str(make_run("b")), "--counts", kept, "--update"]) == PASSED
    told = " ".join(capsys.readouterr().out.split())
    assert "bytes read per byte used: 2.50" in told
    assert "spans per sample: 0.75" in told
    assert "so not compared: opens, bytes requested from the system" in " ".join(told.split())
    assert main(["check", str(make_run("c")), "--counts", kept]) == PASSED
    assert "passed: counts of the run\n11 figures as expected\n" in capsys.readouterr().out
    more = str(make_run("d", reads=3))
    assert main(["check", more, "--counts", kept]) == REGRESSION
    told = capsys.readouterr().out
    assert "regression: counts of the run" in told
    assert "\nreads: 300, expected 200" in told
    assert "\nspans of read: 300, expected 200" in told
    assert "if this is intended, use --update" in told
    fewer = str(make_run("e", reads=1))
    assert main(["check", fewer, "--counts", kept]) == PASSED
    told = capsys.readouterr().out
    assert "passed: counts of the run\nreads: 100, expected 200: less" in told
    assert (
        "less work than the file expects passes; use --update to require it of later runs"
    ) in told
    assert main(["check", fewer, "--counts", kept, "--json"]) == PASSED
    [gate] = json.loads(capsys.readouterr().out)["gates"]
    assert {"reads", "read_nbytes"} <= {each["name"] for each in gate["improvements"]}
    assert main(["check", more, "--counts", kept, "--update"]) == PASSED
    assert main(["check", more, "--counts", kept]) == PASSED


def test_counts_that_a_run_does_not_tell_stay_open(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    assert main(["check", str(make_run("a")), "--counts", kept, "--update"]) == PASSED
    estimated = make_run("b", flags=17)
    assert main(["check", str(estimated), "--counts", kept, "--json"]) == OPEN
    out = capsys.readouterr().out
    told = json.loads(out[out.index('{\n "gates"') :])
    assert (told["outcome"], told["exit_code"]) == ("inconclusive", 4)
    assert set(told["gates"][0]["unknown"]) == {
        "reads", "read_nbytes", "stages/read/spans", "stages/read/nbytes",
    }  # fmt: skip


def test_counts_of_a_run_that_was_killed_are_not_kept(
    make_run: MakeRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, kept = make_run(), tmp_path / "counts.json"
    process = replace(open_profile(run).processes[0], closed=False)
    killed = replace(open_profile(run), processes=(process,))
    monkeypatch.setattr(Run, "open", lambda _: Run(killed))
    assert main(["check", str(run), "--counts", str(kept), "--update"]) == ERROR
    assert "expected a run that has finished" in capsys.readouterr().err
    assert not kept.exists()


def test_a_run_of_several_formats_has_counts_of_each(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    make_run("first/source")
    make_run("first/zarr", reads=1)
    make_run("second/source")
    make_run("second/zarr", reads=2)
    make_run("third/numpy")
    assert main(["check", str(tmp_path / "first"), "--counts", kept, "--update"]) == PASSED
    assert main(["check", str(tmp_path / "second"), "--counts", kept]) == REGRESSION
    told = capsys.readouterr().out
    assert "passed: counts of source" in told
    assert "regression: counts of zarr" in told
    assert main(["check", str(tmp_path / "third"), "--counts", kept]) == ERROR
    assert "expects nothing of numpy, only of source, zarr" in capsys.readouterr().err
    make_run("fourth/source")
    assert main(["check", str(tmp_path / "fourth"), "--counts", kept]) == ERROR
    assert "expects zarr too, which" in capsys.readouterr().err


def test_exposed_share_is_exact_and_has_an_interval(make_run: MakeRun) -> None:
    found = exposed_share(Run(open_profile(make_run(wait_ns=250_000))).of_rank())
    assert found.share == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2, 0.2))
    uneven = exposed_share(
        Run(
            open_profile(make_run("uneven", wait_ns=lambda k: 100_000 * (1 + k * 7919 % 11)))
        ).of_rank()
    )
    assert uneven.share is not None
    assert uneven.low is not None
    assert uneven.high is not None
    assert 0 < uneven.low < uneven.share < uneven.high < 1
    assert uneven.high - uneven.low < 0.2
    assert exposed_share(Run(open_profile(make_run("short", n_batches=10))).of_rank()).low is None


@pytest.mark.parametrize(
    ("wait_ns", "limit", "code"),
    [(50_000, "5%", PASSED), (50_000, "0.03", REGRESSION), (250_000, "5 %", REGRESSION)],
)
def test_the_exposed_share_has_a_limit(
    make_run: MakeRun, wait_ns: int, limit: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(make_run(wait_ns=wait_ns)), "--max-exposed", limit]) == code
    assert "steps, steady state" in capsys.readouterr().out


def test_a_limit_inside_the_interval_stays_open(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven = make_run(wait_ns=lambda batch: 1000 + 2_000_000 * (batch % 37 == 5))
    assert main(["check", str(uneven), "--max-exposed", "5%"]) == OPEN
    assert "the interval contains the limit" in capsys.readouterr().out
    assert main(["check", str(make_run("s", n_batches=9)), "--max-exposed", "5%"]) == OPEN
    assert "fewer than 48 steady-state steps" in capsys.readouterr().out


def _share(wait: int, *, unknown: int = 0, lost: int = 0, half: float = 0.01) -> ExposedShare:
    sums = {"wait": [wait / 2 - half, wait / 2 + half], "wall": [500.0, 500.0]}
    sums |= {"steps": [50.0, 50.0], "samples": [200.0, 200.0]}
    blocks = {name: np.array(each) for name, each in sums.items()}
    return ExposedShare(100, 400, 1000, wait, unknown, lost, StepSums(blocks, {}, None))


@pytest.mark.parametrize(
    ("found", "judged"),
    [
        (_share(40), (Outcome.PASSED, None)),
        (_share(60), (Outcome.REGRESSION, None)),
        (_share(60, unknown=20), (Outcome.INCONCLUSIVE, Doubt.UNKNOWN)),
        (_share(60, unknown=5), (Outcome.REGRESSION, None)),
        (_share(40, lost=1), (Outcome.INCONCLUSIVE, Doubt.LOST)),
        (_share(52, half=1), (Outcome.INCONCLUSIVE, Doubt.STRADDLES)),
    ],
)
def test_what_is_concluded_of_a_share(
    found: ExposedShare, judged: tuple[Outcome, Doubt | None]
) -> None:
    assert ShareGate("run", found, 0.05).judged == judged
    assert GrowthGate("run", found, _share(0, half=0), 0.05).judged == judged


def test_a_stored_run_is_held_against(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = str(make_run("stored", wait_ns=50_000))
    assert main(["check", str(make_run("same")), "--against", stored]) == PASSED
    worse = str(make_run("worse", wait_ns=300_000))
    capsys.readouterr()
    assert main(["check", worse, "--against", stored]) == REGRESSION
    assert "exposed time per sample: +24 % (+24 % to +24 %)" in capsys.readouterr().out
    assert main(["check", worse, "--against", stored, "--margin", "25%"]) == PASSED
    assert main(["check", stored, "--against", worse]) == PASSED
    assert main(["check", str(make_run("few", n_batches=9)), "--against", stored]) == OPEN


@pytest.mark.parametrize(
    "other", [{"cpu_model": "Another CPU"}, {"cpus": 4}, {"system": "Darwin 24"}, {"cpu_model": ""}]
)
def test_another_machine_is_refused_unless_told(
    make_run: MakeRun, other: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"host": "two", "cpus": 2, "cpu_model": "Some CPU", "system": "Linux 5.14", **other}
    stored = str(make_run("stored"))
    new = str(make_run("new", config={"machine": machine}))
    assert main(["check", new, "--against", stored]) == ERROR
    error = capsys.readouterr().err
    assert "another machine" in error
    assert next(iter(other)) in error
    assert "--any-machine" in error
    assert main(["check", new, "--against", stored, "--any-machine"]) == PASSED


def test_other_formats_and_datasets_are_refused(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("one/source")
    make_run("other/zarr")
    assert main(["check", str(tmp_path / "one"), "--against", str(tmp_path / "other")]) == ERROR
    assert "expected the same formats" in capsys.readouterr().err
    yr, ens = (str(make_run(name, config={"dataset": name})) for name in ("yr", "ens"))
    assert main(["check", yr, "--against", ens]) == ERROR
    assert "dataset is ens" in capsys.readouterr().err


def _paired(
    ratio: float, low: float | None, high: float | None, band: tuple[float, float]
) -> PairedGate:
    paired = RoundRatio(12, ratio, low, high, *band)
    return PairedGate(("new",), ("old",), paired, ratio, 1.0, 0.05, by_cpu=False)


@pytest.mark.parametrize(
    ("gate", "judged"),
    [
        (_paired(1.0, 0.98, 1.02, (0.98, 1.02)), (Outcome.PASSED, None)),
        (_paired(0.5, 0.4, 0.6, (0.98, 1.02)), (Outcome.PASSED, None)),
        (_paired(0.5, 0.4, 0.6, (0.8, 1.2)), (Outcome.PASSED, None)),
        (_paired(0.9, 0.7, 0.95, (0.8, 1.2)), (Outcome.INCONCLUSIVE, Doubt.NOISE)),
        (_paired(1.2, 1.1, 1.3, (0.98, 1.02)), (Outcome.REGRESSION, None)),
        (_paired(2.0, 1.8, 2.2, (0.7, 1.4)), (Outcome.REGRESSION, None)),
        (_paired(1.2, 1.1, 1.3, (0.8, 1.2)), (Outcome.INCONCLUSIVE, Doubt.NOISE)),
        (_paired(1.0, 0.9, 1.0, (0.8, 1.0)), (Outcome.INCONCLUSIVE, Doubt.NOISE)),
        (_paired(1.04, 1.01, 1.08, (0.98, 1.02)), (Outcome.INCONCLUSIVE, Doubt.STRADDLES)),
        (_paired(2.0, None, None, (1, 1)), (Outcome.INCONCLUSIVE, Doubt.FEW_ROUNDS)),
    ],
)
def test_what_is_concluded_of_two_commands(
    gate: PairedGate, judged: tuple[Outcome, Doubt | None]
) -> None:
    assert gate.judged == judged


def test_commands_take_turns_and_the_first_round_does_not_count() -> None:
    asked: list[str] = []

    class Arm:
        def __init__(self, command: Sequence[str], *, by_cpu: bool) -> None:
            assert by_cpu
            self.command = command

        def __call__(self, round: int) -> float:
            asked.append(self.command[0])
            return (100.0 if not round else 1.0) * (1.5 if self.command[0] == "new" else 1.0)

    done: list[tuple[int, int]] = []

    def ran(n_ran: int, most: int) -> None:
        done.append((n_ran, most))

    gate = compare_commands(["new"], ["old"], rounds=8, margin=0.1, by_cpu=True, ran=ran, arm=Arm)
    assert gate.judged == (Outcome.REGRESSION, None)
    assert (gate.paired.ratio, gate.paired.band_high, gate.paired.n_rounds) == (1.5, 1.0, 8)
    assert (gate.command_s, gate.reference_s) == (1.5, 1.0)
    assert (asked.count("new"), asked.count("old")) == (9, 18)
    assert done == [(number, 27) for number in range(1, 28)]


def test_commands_without_any_time_are_refused() -> None:
    class NoTime:
        def __init__(self, command: Sequence[str], *, by_cpu: bool) -> None:
            pass

        def __call__(self, round: int) -> float:
            return 0.0

    with pytest.raises(TrialError, match="no time that can be measured"):
        compare_commands(["new"], ["old"], rounds=6, margin=0.1, arm=NoTime)


def _judged_in_noise(seed: int, factor: float, spread: float) -> Outcome:
    """Return what a gate concludes on a machine that gets slower and has long moments."""
    chance = random.Random(seed)
    n_runs = 0

    class Noisy:
        def __init__(self, command: Sequence[str], *, by_cpu: bool) -> None:
            self.factor = factor if command[0] == "new" else 1.0

        def __call__(self, round: int) -> float:
            nonlocal n_runs
            n_runs += 1
            long_moment = 1.5 if chance.random() < 0.05 else 1.0
            return self.factor * long_moment * (1 + n_runs / 100) * chance.lognormvariate(0, spread)

    return compare_commands(["new"], ["old"], rounds=12, margin=0.05, arm=Noisy).judged[0]


def test_equal_commands_hardly_ever_fail_and_slow_ones_never_pass() -> None:
    for spread in (0.01, 0.05):
        equal = [_judged_in_noise(seed, 1.0, spread) for seed in range(150)]
        assert Outcome.REGRESSION not in equal
        slower = [_judged_in_noise(seed, 1.3, spread) for seed in range(150)]
        assert Outcome.PASSED not in slower
        assert slower.count(Outcome.REGRESSION) > 135


@given(st.lists(st.tuples(RATIO, RATIO), min_size=12, max_size=12), st.sampled_from([0.0, 0.05]))
def test_what_is_said_to_be_settled_is(rounds: list[tuple[float, float]], margin: float) -> None:
    for n in range(13):
        settled = not can_decide(*_parted(rounds[:n]), rounds=12, margin=margin)
        ends = [rounds, *([*rounds[:n], *[end] * (12 - n)] for end in EXTREMES)]
        for end in ends if settled else []:
            ratio = round_ratio([1.0] * 12, *_parted(end))
            gate = PairedGate(("new",), ("old",), ratio, 1.0, 1.0, margin, by_cpu=False)
            assert gate.judged[0] is Outcome.INCONCLUSIVE


def _parted(rounds: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [one for one, _ in rounds], [other for _, other in rounds]


def test_rounds_that_cannot_decide_are_not_run() -> None:
    times = iter([1.0, 1.3, 1.7] * 40)

    class Noisy:
        def __init__(self, command: Sequence[str], *, by_cpu: bool) -> None:
            pass

        def __call__(self, round: int) -> float:
            return next(times)

    ran: list[tuple[int, int]] = []
    gate = compare_commands(
        ["new"], ["old"], rounds=12, margin=0.05, arm=Noisy, ran=lambda *each: ran.append(each)
    )
    assert gate.judged == (Outcome.INCONCLUSIVE, Doubt.NOISE)
    assert 6 <= gate.paired.n_rounds < 12
    assert ran[-1] == (3 * (gate.paired.n_rounds + 1), 39)
    told = " ".join(TerminalRenderer().render(check_document(Checked((gate,)))).split())
    assert (
        f"{gate.paired.n_rounds} alternating rounds of 12; the remaining rounds could not "
        "change the outcome"
    ) in told
    assert "would decide this" in told
    assert to_plain(gate)["planned_rounds"] == 12


@pytest.mark.parametrize("spread", [0.02, 0.05])
def test_as_many_rounds_as_are_said_to_decide_mostly_do(spread: float) -> None:
    chance = random.Random(1)

    def noise(n: int) -> list[float]:
        return [chance.lognormvariate(0, spread) for _ in range(n)]

    decided = []
    for _ in range(80):
        enough = rounds_to_decide(noise(12), noise(12), margin=0.03)
        if enough is None:  # the median happens to lie at the limit
            continue
        ratio = round_ratio([1.0] * enough, noise(enough), noise(enough))
        gate = PairedGate(("new",), ("old",), ratio, 1.0, 1.0, 0.03, by_cpu=False)
        decided.append(gate.judged[0] is not Outcome.INCONCLUSIVE)
    assert len(decided) > 60
    assert sum(decided) > len(decided) // 2
    assert rounds_to_decide(noise(12), noise(12), margin=0.0) is None
    assert rounds_to_decide([1.0, 1.1], [1.0, 1.1], margin=0.05) is None


def test_so_few_rounds_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--rounds", "5", "--", "no-such-program", "--against", "--", "another"]
    assert main(words) == ERROR
    told = capsys.readouterr().err
    assert "--rounds 5: so few have no interval of 95 %" in told
    assert "give 6 or more" in told


def test_a_regression_counts_more_than_what_is_open() -> None:
    passed = ShareGate("run", _share(40), 0.05)
    regression = ShareGate("run", _share(60), 0.05)
    is_open = ShareGate("run", _share(40, lost=1), 0.05)
    assert Checked(()).judged == Outcome.PASSED
    assert Checked((is_open, passed)).judged == Outcome.INCONCLUSIVE
    assert Checked((is_open, regression)).judged == Outcome.REGRESSION
