"""The report on the terminal: its key statements word for word, and what it must never print."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnose
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import LongWaits
    from iobench.report.run_report import RunReport

Show = Callable[..., str]
Make = Callable[..., "RunReport"]


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_the_answer_is_in_the_first_lines(bound: RunReport, show: Show) -> None:
    lines = show(bound).splitlines()
    assert lines[:11] == [
        "maelstrom-ens10 as source: loader workers, 2 workers, batch size 1, 204 batches",
        "",
        "Verdict",
        "I/O-bound: in steady state the training loop waits 64 % of its time for data,",
        "most of all for decode (72 % of the wait).",
        "STAND-IN: generated files, not the real dataset.",
        "",
        "Exposed I/O: 64 % of the steady state; 65 % of the whole run (8.12 s of 12.4 s).",
        "A step waits: 38.1 ms on average; median 1.50 ms, maximum 812 ms (steady state).",
        "Throughput: 16.9 samples/s delivered, 404 MB/s (steady state, 200 batches).",
        "Accelerator utilisation: 36 % of the time spent computing (steady state).",
    ]


def test_compute_says_its_figures_and_where_they_are_from(bound: RunReport, show: Show) -> None:
    assert (
        "Compute: 21.1 ms per step (forward 5.25 ms, backward 15.9 ms), emulated; from MAELSTROM "
        "D2.3, table 4" in unwrapped(show(bound))
    )


def test_tiny_is_said(make: Make, show: Show) -> None:
    assert "and TINY: fewer, for most datasets also smaller samples." in unwrapped(
        show(make(tiny=True))
    )


def test_real_files_have_no_banner(make: Make, show: Show) -> None:
    text = show(make(stand_in=False))
    assert "STAND-IN" not in text
    assert "--data-dir" not in text


def test_stage_rows(bound: RunReport, show: Show) -> None:
    text = show(bound)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "decode 11.000 5.500 5.500 72 %",
        "collate 0.300 0.299 0.001 < 0.1 %",
        "hand-over 0.020 0 0.020 0.3 %",
    ):
        assert any(each.startswith(row) for each in rows), row
    assert re.search(r"^  all +16\.520 +8\.899 +7\.621 +100 %", text, re.MULTILINE)


def test_wait_stands_beside_the_published_one(bound: RunReport, show: Show) -> None:
    text = show(bound)
    assert "Wait per step\n" in text
    assert re.search(r"^  steady state +0\.02 +38\.10 +1\.50 +812\.00 +12\.00 +200$", text, re.M)
    assert re.search(r"^  published +21\.58 +108\.81 +105\.77 +6,021\.23 +228\.15 *$", text, re.M)


def test_a_frameworks_own_published_row_stands_beside_its_wait(make: Make, show: Show) -> None:
    of_torch = [0.02158, 0.10881, 0.10577, 6.02123, 0.22815]
    published = {
        "exposed_io_s": of_torch,
        "source": "MAELSTROM D2.3, table 4",
        "tables": {
            "D2.3 table 4, PyTorch": {"I/O": of_torch},
            "D2.3 table 5, TensorFlow": {"I/O": [0.00043, 0.03479, 0.00089, 28.64989, 0.69822]},
        },
    }
    text = show(make(framework="tensorflow", published=published))
    assert re.search(r"^  published +0\.43 +34\.79 +0\.89 +28,649\.89 +698\.22 *$", text, re.M)
    assert "from D2.3 table 5, TensorFlow." in text
    for framework in ("torch", "native"):
        text = show(make(framework=framework, published=published))
        assert re.search(r"^  published +21\.58 +108\.81 ", text, re.M), framework
        assert "from MAELSTROM D2.3, table 4" in text


def test_start_up_and_set_up_are_apart(bound: RunReport, show: Show) -> None:
    text = show(bound)
    assert re.search(r"^  start-up: first batch +0\.521 +0\.500 +96 % +1$", text, re.MULTILINE)
    assert "not included above: index 412 ms, normalisation 3.10 s." in text


def test_how_far_to_trust_it(bound: RunReport, show: Show) -> None:
    text = unwrapped(show(bound))
    assert (
        "> 99.9 % of the files were in it beforehand; 3.1 % of the bytes read came from the"
    ) in text
    assert "iobench's own overhead: 0.1 % of the time of all processes. Lost spans: 0." in text
    assert "Missing workers: none. Host-to-device copies: not measured (no accelerator)." in text


def test_measured_overhead_is_said_to_be_of_its_own_code(bound: RunReport, show: Show) -> None:
    measured = replace(bound, exposure=replace(bound.exposure, overhead_once_ns=250_000_000))
    text = unwrapped(show(measured))
    assert (
        "iobench's own overhead: 0.1 % of the time of the epochs is spent in its own code, which "
        "slows the rest by an unknown amount; each process also spends at most 250 ms once." in text
    )


def test_next_commands(bound: RunReport, show: Show) -> None:
    assert show(bound).endswith(
        "What to try next\n  the same profile on real files of maelstrom-ens10, in DIR:\n"
        "    iobench profile maelstrom-ens10 --workers 2 --data-dir DIR\n"
    )


def test_next_of_a_hidden_run_promises_nothing(hidden: RunReport, show: Show) -> None:
    text = show(hidden)
    assert "Hidden: in steady state the training loop waits 2.2 % of its time" in text
    assert "  nothing to gain from faster loading at this step time.\n" in text


def test_unknown_is_never_zero(unknown: RunReport, show: Show) -> None:
    text = unwrapped(show(unknown))
    assert "unnamed dataset as unknown: loader unknown" in text
    assert "Throughput: unknown samples/s delivered, unknown (whole run, 2 batches)." in text
    assert "iobench's own overhead: unknown. Lost spans" in text
    assert (
        "unknown of the files were in it beforehand; how much came from the device is unknown"
    ) in text


def test_without_a_batch_there_are_no_tables_of_zeros(make: Make, show: Show) -> None:
    report = make()
    whole = replace(report.exposure.whole, wall_ns=0, wait_ns=0, n_batches=0, stages=(), wait=None)
    empty = replace(report.exposure, whole=whole, steady=None)
    text = show(replace(report, exposure=empty, diagnosis=diagnose(empty)))
    assert "Exposed I/O: unknown, because no batch was delivered." in text
    assert "Stages" not in text
    assert "Wait per step" not in text
    assert "Missing workers: none." in text


def test_what_is_missing_is_named(unknown: RunReport, show: Show) -> None:
    text = unwrapped(show(unknown))
    assert "Lost spans: 7. Missing workers: worker-1." in text
    assert "Span files with unreadable spans: consumer." in text
    assert "Killed, or still running: worker-0." in text
    assert "most of all for unrecorded causes (100 % of the wait)" in text


def test_formats_are_compared_once(bound: RunReport, hidden: RunReport, show: Show) -> None:
    text = show(bound, hidden)
    assert text.count("Steady state, except 'whole run' and the bytes read") == 1
    assert re.search(
        r"^  source +16\.9 +38\.105 +1\.500 +65 % +64 % +36 % +404 MB/s +2\.40$", text, re.M
    )
    assert re.search(r"^  tfrecord +46\.3 +0\.480 +1\.500 +12 % +2\.2 % +98 % ", text, re.M)
    assert "Store, a probe of the dataset: 1.00 GB, converted in 12.0 s, not" in unwrapped(text)
    assert text.index("tfrecord: Hidden") < text.index("== source ==")


def test_rare_long_waits_are_said(make: Make, show: Show, long_waits: LongWaits) -> None:
    report = make()
    report = replace(report, exposure=replace(report.exposure, long_waits=long_waits))
    assert (
        "Rare long waits: 9 of 362 steps wait 160 s in total (median 18.0 s); waiting above the "
        "median is 71 % of the run; one every 40 steps; they coincide with a change of file (9 of "
        "9), the first batch of an epoch (1 of 9)." in unwrapped(show(report))
    )


def test_common_long_waits_are_not_called_rare(
    make: Make, show: Show, long_waits: LongWaits
) -> None:
    report = make()
    common = replace(long_waits, n_waits=27, n_steps=60, period_steps=None, coincidences=())
    report = replace(report, exposure=replace(report.exposure, long_waits=common))
    assert "Uneven waits: 27 of 60 steps wait 160 s in total" in show(report)


def test_workers_in_step_explain_uneven_waits(
    make: Make, show: Show, long_waits: LongWaits
) -> None:
    report = make()
    even = replace(long_waits, n_waits=96, n_steps=200, period_steps=2, coincidences=())
    in_step = replace(report.exposure, long_waits=replace(even, in_step=True))
    assert (
        "Workers in lockstep: 96 of 200 steps wait 160 s in total (median 18.0 s); waiting above "
        "the median is 71 % of the run; one every 2 steps; the workers finish their batches "
        "together, so one step waits for all of them and the next ones hardly wait: use the mean, "
        "not the median." in unwrapped(show(replace(report, exposure=in_step)))
    )


@pytest.mark.parametrize("columns", ["20", "80", "120", "300"])
def test_no_line_is_too_long_and_no_figure_is_cut(
    bound: RunReport, hidden: RunReport, show: Show, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = show(bound, hidden)
    width = min(max(int(columns), 80), 110)
    assert all(len(line) <= width for line in text.splitlines() if "iobench profile" not in line)
    assert "404 MB/s" in text
    assert not re.search(r"(\d|<|>)\n *(ms|us|s|%|[kMGT]?B)\b", text)
    assert "…" not in text


def test_no_colour_without_a_terminal(bound: RunReport, show: Show) -> None:
    assert "\x1b" not in show(bound)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_colour", [False, True])
def test_a_terminal_has_colour_unless_not_wanted(
    bound: RunReport, show: Show, monkeypatch: pytest.MonkeyPatch, no_colour: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    text = TerminalRenderer(terminal).render(report_document([], reports=[bound]))
    assert ("\x1b[1;31mI/O-bound" in text) != no_colour
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == show(bound)


def test_plain_ascii(make: Make) -> None:
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    document = report_document([], reports=[make(dataset="Wetter-Gr\u00f6\u00dfen")])
    text = TerminalRenderer(file).render(document)
    assert text.isascii()
    assert text.startswith("Wetter-Gr\\xf6\\xdfen as source")


def test_large_figures_and_long_names_keep_their_columns(make: Make, show: Show) -> None:
    report = make()
    exposure = report.exposure
    decode = replace(
        exposure.judged.stages[0], busy_ns=1_234_567 * 10**6, hidden_ns=1_229_067 * 10**6
    )
    named = replace(exposure.judged.stages[2], stage="preprocess:" + "augment-" * 5)
    part = replace(exposure.judged, stages=(decode, *exposure.judged.stages[1:], named))
    text = show(replace(report, exposure=replace(exposure, **{exposure.window: part})))
    assert re.search(r"^  decode +1,234\.57 +1,229\.07 +5\.50 +72 % ", text, re.MULTILINE)
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_fused_stage_without_cpu_time_says_so(make: Make, show: Show) -> None:
    report = make()
    rows = report.exposure.whole.stages
    fused = replace(rows[0], stage="fused:read+decode", kind=Kind.FUSED, cpu_ns=None)
    whole = replace(report.exposure.whole, stages=(fused, *rows[1:]))
    text = unwrapped(show(replace(report, exposure=replace(report.exposure, whole=whole))))
    assert (
        "making samples (read+decode) is a single step of this source, not split; its CPU part is "
        "unknown." in text
    )


def test_without_compute_there_is_nothing_to_hide_behind(make: Make, show: Show) -> None:
    text = unwrapped(show(make(compute={"forward_ns": 0, "backward_ns": 0, "source": "none"})))
    assert "Compute: none." in text
    assert "No compute stage, so there is nothing to hide loading behind: in steady state" in text


def test_what_is_loaded_upstream_is_compared(make, hidden: RunReport, show: Show) -> None:
    told = "U-Net's grid loader; everything else assumed."
    today = make(pipeline="upstream", framework="torch", described_by=told)
    text = show(today, hidden)
    assert re.search(r"^  upstream +16\.9 +38\.105 ", text, re.M)
    assert f"This pipeline: {told}" in unwrapped(text)
    assert (
        "Over the whole run upstream waits 65 % of its time for data; with iobench the same "
        "training as tfrecord waits 12 %, 2.53 times the samples per second. In steady state "
        "upstream waits 64 %; as tfrecord waits 2.2 %, 2.74 times the samples per second."
    ) in unwrapped(text)
    assert "Over the whole run" not in show(hidden)
