"""What is told of a run, by names and values that any server takes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from tracked_runs import make_run

from iobench.analysis.run import Run
from iobench.masking import mask_line
from iobench.report.json_report import to_json
from iobench.runs.reading import open_profile
from iobench.tracking.legal_names import LONGEST_VALUE, PREFIX, cut, legal_name, legal_names
from iobench.tracking.run_logging import part_name
from iobench.tracking.run_metrics import EPOCH_MARK, run_contents

LEGAL = re.compile(r"[A-Za-z0-9_./-]+")


@given(st.lists(st.text(), max_size=8, unique=True))
def test_names_are_legal_and_no_two_the_same(texts):
    names = legal_names(texts)
    assert len(set(names.values())) == len(texts)
    for name in names.values():
        assert LEGAL.fullmatch(name)
        assert "/" not in name
        assert not set(name) <= {"."}
        assert len(PREFIX + name) < 250


def test_a_kind_and_its_label_are_told_apart_by_a_dot():
    assert legal_name("decode:grib") == "decode.grib"
    assert legal_name("step:forward+backward") == "step.forward_backward"
    assert legal_name("../etc") == "_etc"


@given(st.text(max_size=2000))
def test_a_value_is_never_longer_than_servers_take(text):
    found, was_cut = cut(text)
    assert len(found) <= LONGEST_VALUE
    assert was_cut == (len(" ".join(text.split())) > LONGEST_VALUE)
    assert not was_cut or "cut" in found


def test_messages_tell_no_secret_of_the_environment(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc.def")
    monkeypatch.setenv("SOME_PASSWORD", "x")
    text = mask_line("refused abc.def\nat https://u:p@h/ --api-key zzz, x")
    assert text == "refused *** at https://***@h/ --api-key *** x"


def test_words_and_figures_of_a_run_are_no_secrets(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("MAX_TOKENS", "2048")
    assert mask_line("2048 samples, false") == "2048 samples, false"


def test_a_secret_that_begins_as_another_is_masked_whole(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "abcd")
    monkeypatch.setenv("B_TOKEN", "abcdefgh")
    monkeypatch.setenv("C_TOKEN", "abcdef")
    assert mask_line("x abcdefgh abcd") == "x *** ***"


def test_every_epoch_has_its_mark_and_the_five_figures(tmp_path):
    contents = run_contents(Run(open_profile(make_run(tmp_path / "run"))).of_rank())
    assert [each.epoch for each in contents.epochs] == [0, 1]
    for each in contents.epochs:
        assert each.metrics[f"{PREFIX}epoch/complete"] == 1.0
        assert each.metrics[EPOCH_MARK] > 0
        for name in ("batch_s", "exposed_io_s", "forward_s", "backward_s", "read/exposed_s"):
            for figure in ("min", "mean", "median", "max", "stdev"):
                assert f"{PREFIX}{name}/{figure}" in each.metrics
    waited = sum(each.metrics[f"{PREFIX}epoch/wait_s"] for each in contents.epochs)
    assert abs(waited - contents.totals[f"{PREFIX}run/wait_s"]) < 1e-12


def test_an_epoch_that_was_cut_off_is_told_as_well(tmp_path):
    run = make_run(tmp_path / "run", ended=False, n_samples=None)
    contents = run_contents(Run(open_profile(run)).of_rank())
    complete = [each.metrics[f"{PREFIX}epoch/complete"] for each in contents.epochs]
    assert complete == [1.0, 0.0]


def test_parts_of_a_run_have_names(tmp_path):
    assert part_name(None, "") == ""
    assert part_name(1, "") == "rank-1"
    assert part_name(None, "numpy") == "numpy"
    assert part_name(1, "numpy") == "numpy-rank-1"


def test_a_run_without_compute_is_judged_as_its_report_judges_it(tmp_path):
    step = {"forward_ns": 0, "backward_ns": 0, "source": "none"}
    profile = open_profile(make_run(tmp_path / "run", compute=step))
    for verdict in (
        run_contents(Run(profile).of_rank()).tags["iobench.verdict"],
        to_json([Run(profile)])["runs"][0]["verdict"],
    ):
        assert verdict.startswith("No compute stage, so there is nothing to hide loading behind: ")
