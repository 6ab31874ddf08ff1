"""What is said of statistics and of fewer bits: nothing that could be false of some variable."""

from __future__ import annotations

from iobench.cli.store_tables import quality_told, statistics_told

STATISTICS = {"n": 10, "n_missing": 0, "mean": 5.0, "std": 2.0, "min": 1.0, "max": 9.0}


def quality(**more):
    return {
        "max_absolute_error": 0.1,
        "max_relative_error": 0.02,
        "rmse": 0.02,
        "bias": -0.01,
        "before": STATISTICS,
        "after": {**STATISTICS, "std": 2.1},
        **more,
    }


def test_a_deviation_of_0_divides_nothing() -> None:
    constant = {**STATISTICS, "std": 0.0}
    same = quality(rmse=0.0, bias=0.0, before=constant, after=constant)
    (table,) = quality_told({"t": same}, 12)
    assert [cell.value for cell in table.rows[0][3:6]] == [0.0, 0.0, 0.0]
    off = quality(before=constant, after=constant)
    (table,) = quality_told({"t": off}, 12)
    assert [cell.value for cell in table.rows[0][3:6]] == [None, None, 0.0]


def test_numbers_have_the_digits_in_which_they_differ() -> None:
    told = {**STATISTICS, "mean": 101325.123, "std": 12.0, "n_missing": 5, "min": 101290.0}
    (table,) = statistics_told({"all": {"p": {**told, "by": {"level": {}}}}, "train": {}})
    assert table.rows[0][1:4] == ("101325.1", "12", "101290")
    assert table.rows[0][-1] == "33 %"
    assert table.note == "--json has them by splits (train) and level as well."
    none = {**dict.fromkeys(("mean", "std", "min", "max")), "n": 0, "n_missing": 3}
    (table,) = statistics_told({"all": {"p": none}})
    assert table.rows[0] == ("p", "unknown", "unknown", "unknown", "unknown", "100 %")
