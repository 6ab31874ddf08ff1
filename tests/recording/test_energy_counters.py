"""Counters of processors, memory and machines, in files as Linux and HPE Cray have them."""

import os

import pytest

from iobench.recording.energy_counters import CounterError, CounterRoots, find_host_counters


def powercap(root, **folders):
    """Write a tree: the name of each folder, with ``_`` for ``:``, and what it counts."""
    for folder, (name, value) in folders.items():
        path = root / folder.replace("__", "-").replace("_", ":").replace(
            "intel:rapl", "intel-rapl"
        )
        path.mkdir(parents=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{value}\n")
        (path / "max_energy_range_uj").write_text("262143328850\n")
    return root


def roots(tmp_path):
    return CounterRoots(tmp_path / "powercap", tmp_path / "cray", *[tmp_path / "none"] * 2)


def told(found):
    readings = {each.source.name: each.read_uj() for each in found.counters}
    found.close()
    return readings, {(each.kind, each.reason) for each in found.unreadable}


def test_packages_and_their_memory_are_read_and_nothing_twice(tmp_path):
    powercap(
        tmp_path / "powercap",
        intel_rapl_0=("package-0", 100),
        intel_rapl_0_0=("core", 60),
        intel_rapl_0_1=("uncore", 5),
        intel_rapl_0_2=("dram", 7),
        intel_rapl_1=("package-1-die-0", 200),
        intel_rapl_2=("psys", 900),
    )
    mmio = tmp_path / "powercap" / "intel-rapl-mmio:0"
    mmio.mkdir()
    (mmio / "name").write_text("package-0\n")
    (mmio / "energy_uj").write_text("100\n")
    found = find_host_counters(roots(tmp_path))
    assert [each.source.title for each in found.counters] == [
        "package-0", "package-1-die-0", "dram of package-0",
    ]  # fmt: skip
    assert {each.source.wraps_uj for each in found.counters} == {262143328850}
    assert told(found) == (
        {"cpu:intel-rapl:0": 100, "cpu:intel-rapl:1": 200, "memory:intel-rapl:0:2": 7},
        set(),
    )


def test_a_counter_is_read_again_each_time(tmp_path):
    tree = powercap(tmp_path / "powercap", intel_rapl_0=("package-0", 1))
    (counter,) = find_host_counters(roots(tmp_path)).counters
    (tree / "intel-rapl:0" / "energy_uj").write_text("1234567\n")
    assert counter.read_uj() == 1234567
    counter.close()
    counter.close()
    with pytest.raises(CounterError):
        counter.read_uj()


def test_without_counters_nothing_is_zero(tmp_path):
    assert told(find_host_counters(roots(tmp_path))) == (
        {},
        {("cpu", "no counter"), ("memory", "no counter")},
    )


def test_what_only_root_may_read_is_told_with_its_file(tmp_path, monkeypatch):
    tree = powercap(
        tmp_path / "powercap", intel_rapl_0=("package-0", 1), intel_rapl_0_0=("dram", 2)
    )
    really_open = os.open

    def refuse(path, *arguments, **more):
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refuse)
    found = find_host_counters(roots(tmp_path))
    assert told(found) == (
        {},
        {
            ("cpu", f"permission denied ({tree / 'intel-rapl:0' / 'energy_uj'})"),
            ("memory", f"permission denied ({tree / 'intel-rapl:0:0' / 'energy_uj'})"),
        },
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "holds ''"), ("-5\n", "holds '-5'"), ("1.5\n", "holds '1.5'"), ("\0\0", "holds ")],
)
def test_what_is_no_number_is_no_energy(tmp_path, text, reason):
    tree = powercap(tmp_path / "powercap", intel_rapl_0=("package-0", text))
    (tree / "intel-rapl:0" / "energy_uj").write_text(text)
    readings, unreadable = told(find_host_counters(roots(tmp_path)))
    assert readings == {}
    assert any(kind == "cpu" and reason in why for kind, why in unreadable)


def test_a_folder_in_place_of_a_file_is_not_readable(tmp_path):
    tree = powercap(tmp_path / "powercap", intel_rapl_0=("package-0", 1))
    (tree / "intel-rapl:0" / "energy_uj").unlink()
    (tree / "intel-rapl:0" / "energy_uj").mkdir()
    readings, unreadable = told(find_host_counters(roots(tmp_path)))
    assert readings == {}
    assert any(kind == "cpu" and "is a directory" in why for kind, why in unreadable)


def cray(root, **values):
    root.mkdir()
    for name, value in values.items():
        (root / name).write_text(f"{value} J 1384300011234567 us\n")
    return root


def test_an_hpe_cray_machine_tells_joules(tmp_path):
    cray(
        tmp_path / "cray", energy=500, cpu_energy=100, memory_energy=30,
        accel0_energy=90, accel1_energy=0, freshness=7, power=300,
    )  # fmt: skip
    found = find_host_counters(roots(tmp_path))
    assert {each.source.by for each in found.counters} == {"HPE Cray"}
    assert told(found) == (
        {
            "cpu:cpu_energy": 100_000_000,
            "memory:memory_energy": 30_000_000,
            "gpu:accel0_energy": 90_000_000,
            "machine:energy": 500_000_000,
        },
        set(),
    )


def test_the_processors_own_counters_go_before_those_of_the_machine(tmp_path):
    cray(tmp_path / "cray", cpu_energy=100, memory_energy=30)
    powercap(tmp_path / "powercap", intel_rapl_0=("package-0", 5))
    readings, unreadable = told(find_host_counters(roots(tmp_path)))
    assert readings == {"cpu:intel-rapl:0": 5, "memory:memory_energy": 30_000_000}
    assert unreadable == set()


def test_joules_without_their_unit_are_no_joules(tmp_path):
    (tmp_path / "cray").mkdir()
    (tmp_path / "cray" / "cpu_energy").write_text("100 W\n")
    readings, unreadable = told(find_host_counters(roots(tmp_path)))
    assert readings == {}
    assert ("cpu", "no counter") in unreadable
