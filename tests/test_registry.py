from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints, version

import pytest

from iobench.errors import IobenchError, OptionError, UnknownNameError
from iobench.registry import (
    _findings_on,
    dataset_names,
    find_converter,
    find_dataset,
    find_format,
    format_names,
    installed_versions,
    unknown_name,
)


def test_first_party_names_come_through_entry_points() -> None:
    assert "maelstrom-ens10" in dataset_names()
    assert {"numpy", "tfrecord", "zarr"} <= set(format_names())
    assert callable(find_converter())


def test_a_misspelt_dataset_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean maelstrom-ens10"):
        find_dataset("maelstrom-ens11")


def test_a_misspelt_format_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean tfrecord"):
        find_format("tfrecords")


def test_a_name_near_nothing_gets_all_of_them() -> None:
    assert "there is source, " in str(unknown_name("format", "xyz", ["source", "numpy"]))


def test_an_option_the_dataset_does_not_know_is_named() -> None:
    with pytest.raises(OptionError, match="levels"):
        find_dataset("maelstrom-ens10", levels="500")


def test_iobench_is_told_beside_packages_of_others() -> None:
    class Theirs:
        __module__ = "somebody.elses"

    assert installed_versions(Theirs()) == {"iobench": version("iobench")}


@pytest.mark.parametrize("value", ["somebody.gone:FINDING", "iobench.registry:GONE"])
def test_what_a_package_names_and_does_not_have_is_refused_in_a_line(value, monkeypatch) -> None:
    points = EntryPoints([EntryPoint("theirs", value, "iobench.findings")])
    monkeypatch.setattr("iobench.registry._points", lambda group: points.select(group=group))
    with pytest.raises(IobenchError, match=r"finding 'theirs'.*(?i:gone).*install it again"):
        _findings_on(("elsewhere",))
