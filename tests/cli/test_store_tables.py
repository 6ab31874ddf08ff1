"""What is said of statistics and of fewer bits: nothing that could be false of some variable."""

from __future__ import annotations

import pytest

from iobench.cli.store_tables import quality_told, statistics_told

STATISTICS = {"n": 10, "n_missing": 0, "mean": 5.0, "std": 2.0, "min": 1.0, "max": 9.0}


def spectrum(n_fields=8, kind="zonal", kept=0.0):
    return {"kind": kind, "n_fields": n_fields, "kept_above": kept}


def quality(told, **more):
    return {
        "max_absolute_error": 0.1,
        "max_relative_error": 0.02,
        "rmse": 0.02,
        "bias": -0.01,
        "before": STATISTICS,
        "after": {**STATISTICS, "std": 2.1},
        "spectrum": told,
        **more,
    }


def said(quality_of, **more):
    table, *sentences = quality_told(quality_of, 12, **more)
    return table, [each.text for each in sentences]


@pytest.mark.parametrize(
    ("kept", "words"), [(0.0, "all"), (None, "none"), (22.627, "from 22.6 points")]
)
def test_what_is_kept_is_said(kept, words) -> None:
    table, sentences = said({"t": quality(spectrum(kept=kept))})
    assert table.rows[0][-1] == words
    assert [cell.value for cell in table.rows[0][3:6]] == pytest.approx([0.01, -0.005, 0.05])
    assert sentences == []


def test_fields_are_counted_for_all_variables() -> None:
    table, _ = said({"a": quality(spectrum(8)), "b": quality(spectrum(8))}, is_probe=True)
    assert "over the probe's 12 samples, scales of 8 fields of each variable, along" in table.note
    table, _ = said({"a": quality(spectrum(3)), "b": quality(spectrum(8, "cosine"))})
    assert "of up to 8 fields of each variable, along rows or in both directions" in table.note


def test_reasons_are_said_once() -> None:
    why = {"unknown": "its fields are constant"}
    table, sentences = said({"a": quality(why), "b": quality(spectrum()), "c": quality(why)})
    assert sentences == ["Scales of a, c are not given: its fields are constant."]
    assert [row[-1] for row in table.rows] == ["-", "all", "-"]
    table, sentences = said({"a": quality(why), "b": quality(why)})
    assert sentences == ["Scales are not given: its fields are constant."]
    assert table.note == "Errors and deviations are over all 12 samples; --json has more."


def test_a_deviation_of_0_divides_nothing() -> None:
    constant = {**STATISTICS, "std": 0.0}
    same = quality(spectrum(), rmse=0.0, bias=0.0, before=constant, after=constant)
    table, _ = said({"t": same})
    assert [cell.value for cell in table.rows[0][3:6]] == [0.0, 0.0, 0.0]
    off = quality(spectrum(), before=constant, after=constant)
    table, _ = said({"t": off})
    assert [cell.value for cell in table.rows[0][3:6]] == [None, None, 0.0]


def test_stores_of_before_tell_what_they_have() -> None:
    """Their largest errors alone: no table is made of them."""
    assert list(quality_told({"t": {"max_absolute_error": 1.0}}, 3)) == []


def test_numbers_have_the_digits_in_which_they_differ() -> None:
    told = {**STATISTICS, "mean": 101325.123, "std": 12.0, "n_missing": 5, "min": 101290.0}
    (table,) = statistics_told({"all": {"p": {**told, "by": {"level": {}}}}, "train": {}})
    assert table.rows[0][1:4] == ("101325.1", "12", "101290")
    assert table.rows[0][-1] == "33 %"
    assert table.note == "--json has them by splits (train) and level as well."
    none = {**dict.fromkeys(("mean", "std", "min", "max")), "n": 0, "n_missing": 3}
    (table,) = statistics_told({"all": {"p": none}})
    assert table.rows[0] == ("p", "unknown", "unknown", "unknown", "unknown", "100 %")
