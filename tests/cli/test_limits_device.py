"""``iobench limits --device``: the link to a stand-in of known rates, and no device in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stand-in's memory is torch's")
sys.path.append(str(Path(__file__).parents[1] / "support"))
from fake_accelerator import FakeAccelerator, Faults

from iobench.cli import main
from iobench.errors import OptionError
from iobench.profiling import device_link

KIB = 1 << 10
SIZES = (4 * KIB, 256 * KIB, 1024 * KIB)
PINNED, PAGEABLE, LATENCY_NS = 4e8, 1e8, 1_000_000


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_link, "SIZES", SIZES)


def use(device: FakeAccelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iobench.torch.device.find_accelerator", lambda *_, **__: device)


@pytest.mark.thorough
def test_the_link_is_told_by_size_as_the_stand_in_carries_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeAccelerator(
        pinned_bytes_per_s=PINNED, pageable_bytes_per_s=PAGEABLE, latency_ns=LATENCY_NS
    ) as device:
        use(device, monkeypatch)
        assert main(["limits", "--device", "auto", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["device"]
    assert found["name"] == device.name
    assert [each["nbytes"] for each in found["link"]] == list(SIZES)
    for each in found["link"]:
        for key, rate in (("pinned_bytes_per_s", PINNED), ("pageable_bytes_per_s", PAGEABLE)):
            most = each["nbytes"] * 1e9 / (LATENCY_NS + each["nbytes"] * 1e9 / rate)
            assert 0.5 * most < each[key] <= most
        assert 1 <= each["n"] <= device_link.MOST_COPIES
    assert not device.pinned  # given back


def test_what_the_driver_refuses_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeAccelerator(faults=Faults(copy=3)) as device:
        use(device, monkeypatch)
        assert main(["limits", "--device", "cuda:0", "--duration", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.strip().startswith(("4.10", "262", "1.05"))]
    assert [row.count("unknown") for row in rows] == [1, 2, 2]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--device", "none"], "No link to a device: --device none"),
        (["--device", "auto"], "No link to a device: torch sees no accelerator"),
    ],
)
def test_no_device_is_one_line(
    asked: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("iobench.torch.device.find_accelerator", lambda *_, **__: None)
    assert main(["limits", *asked]) == 0
    assert capsys.readouterr().out == f"{told}\n"


def test_a_device_that_is_named_and_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(*_: object, **__: object) -> None:
        raise OptionError("--device cuda:7: no such device")

    monkeypatch.setattr("iobench.torch.device.find_accelerator", find)
    assert main(["limits", "--device", "cuda:7"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device", "gpu"], "expected auto, none, cuda"),
        ([".", "--device", "auto"], "can be combined only with --duration and --json"),
        (
            ["--device", "auto", "--bytes", "4GiB"],
            "can be combined only with --duration and --json",
        ),
        (["--device", "auto", "--duration", "0"], "expected more than 0"),
        ([], "expected a folder of files, or --device"),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["limits", *arguments]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
