"""`TorchAccelerator` over a stand-in for what torch shows of CUDA, HIP and Intel's XPU.

What no CPU can tell, that the drivers do as torch says, is left to a machine that has them.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch", reason="the devices are torch's")
import torch

from iobench.errors import DeviceError, OptionError
from iobench.torch import device as device_module
from iobench.torch.device import TorchAccelerator, current_accelerator, find_accelerator, torch_pins


class Stream:
    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index
        self.waited: list[Any] = []
        self.n_events = 0

    def wait_event(self, mark: Any) -> None:
        self.waited.append(mark)


class Event:
    def __init__(self, **options: bool) -> None:
        self.options = options
        self.stream: Stream | None = None
        self.is_waited_for = False

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.n_events += 1
        self.at_ms = stream.n_events * 0.5

    def query(self) -> bool:
        return self.is_waited_for

    def synchronize(self) -> None:
        self.is_waited_for = True

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


class Runtime:
    """What ``cudart()`` returns."""

    cudaError = staticmethod(lambda code: code)

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.code = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 0
        if not self.code:
            self.registered[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, code: int) -> str:
        return {2: "out of memory", 999: "unknown error"}[code]


class Api:
    """``torch.cuda`` or ``torch.xpu``, of two devices."""

    def __init__(self, **known: Any) -> None:
        self.runtime = Runtime()
        self.chosen = 1
        self.contexts = {1}
        """Devices that some of their memory is taken on: chosen once, or used."""
        self.streams = {index: Stream("current", index) for index in range(2)}
        self.n_devices, self.refuses = 2, ""
        self.is_capturing = False
        self._known = known
        self.Event = Event

    def init(self) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)

    def is_available(self) -> bool:
        return self.n_devices > 0 and not self.refuses

    def is_initialized(self) -> bool:
        return self.is_available()

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def device_count(self) -> int:
        return self.n_devices

    @property
    def current(self) -> Stream:
        return self.streams[self.chosen]

    def current_device(self) -> int:
        return self.chosen

    def cudart(self) -> Runtime:
        self.contexts.add(self.chosen)  # which its functions begin to use
        return self.runtime

    def current_stream(self, device: torch.device) -> Stream:
        return self.streams[device.index]

    def Stream(self, device: torch.device) -> Stream:
        return Stream("copies", device.index)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Choose it and its device, and then those before, as ``set_stream`` does for good."""
        before, there = self.current, self.streams[stream.index]
        self._set(stream)
        yield
        self._set(there)
        self._set(before)

    def _set(self, stream: Stream) -> None:
        self.chosen, self.streams[stream.index] = stream.index, stream
        self.contexts.add(stream.index)

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        """Choose a device; the one before is chosen again, and not used."""
        before, self.chosen = self.chosen, device.index
        self.contexts.add(device.index)
        yield
        self.chosen = before

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(**self._known)


class HostTensor(torch.Tensor):
    """Stays where it is, and notes what is asked of it."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    def to(self, *where: Any, **how: Any) -> torch.Tensor:  # type: ignore[override]
        self.asked.append((*where, how))
        return self.clone()

    def pin_memory(self, *_: Any) -> HostTensor:
        self.asked.append(("pinned",))
        return self

    def record_stream(self, stream: Any) -> None:
        self.asked.append(("used by", stream.name))


@pytest.fixture(params=["cuda", "xpu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(kind: str, monkeypatch: pytest.MonkeyPatch) -> Api:
    known = {"name": "NVIDIA A100 MIG 1g.5gb", "total_memory": 5 * 2**30}
    if kind == "xpu":
        known = {"name": "Data Center GPU", "total_memory": 2**36, "driver_version": "1.3"}
    api = Api(**known)
    for other in ("cuda", "xpu"):
        monkeypatch.setattr(torch, other, api if other == kind else Api())
    getattr(torch, "xpu" if kind == "cuda" else "cuda").n_devices = 0
    monkeypatch.setattr(HostTensor, "asked", [])
    return api


def of_host(*shape: int) -> HostTensor:
    return torch.ones(shape).as_subclass(HostTensor)


@pytest.mark.parametrize("ahead", [True, False])
def test_copies_lie_between_marks_of_their_stream(api: Api, kind: str, ahead: bool) -> None:
    accelerator = TorchAccelerator(torch.device(kind, 1))
    copy = accelerator.copy([of_host(3), of_host(5)], ahead=ahead)
    assert copy.nbytes == 4 * (3 + 5)
    assert copy.first.stream is copy.last.stream
    assert copy.last.stream.name == ("copies" if ahead else "current")
    assert copy.first is not copy.last
    # CUDA's have the host sleep; Intel's know no such thing.
    wanted = {"enable_timing": True} | ({"blocking": True} if kind == "cuda" else {})
    assert copy.first.options == wanted
    moved = (torch.device(kind, 1), {"non_blocking": True})
    pinned = [] if kind == "cuda" else [("pinned",)] * 2
    assert HostTensor.asked == [*pinned, moved, moved]
    again = accelerator.copy([of_host(3)], ahead=ahead)
    assert again.last.stream is copy.last.stream


def test_no_other_device_is_begun_to_be_used(api: Api, kind: str) -> None:
    api.chosen = 0  # as in each new thread
    accelerator = TorchAccelerator(torch.device(kind, 1))
    pinned = accelerator.pin(mmap.mmap(-1, 4096))
    copy = accelerator.copy([of_host(3)], ahead=True)
    accelerator.order(copy)
    del pinned
    gc.collect()
    assert api.runtime.registered == {}
    assert (copy.last.stream.name, copy.last.stream.index) == ("copies", 1)
    assert [stream.name for stream in api.streams.values()] == ["current"] * 2
    assert (api.chosen, api.contexts) == (0, {1})


def test_what_comes_next_is_ordered_behind_a_copy(api: Api, kind: str) -> None:
    accelerator = TorchAccelerator(torch.device(kind, 0))
    copy = accelerator.copy([of_host(3)], ahead=True)
    accelerator.order(copy)
    assert api.streams[0].waited == [copy.last]
    assert HostTensor.asked[-1] == ("used by", "current")


def test_events_tell_times_and_are_used_again(api: Api, kind: str) -> None:
    accelerator = TorchAccelerator(torch.device(kind, 1))
    assert accelerator.name == f"{kind}:1"
    first, last = accelerator.mark(), accelerator.mark()
    assert not accelerator.passed(last)
    accelerator.wait(last)
    assert accelerator.passed(last)
    assert accelerator.between_ns(first, last) == 500_000
    accelerator.release(first)
    assert accelerator.mark() is first
    assert accelerator.mark() not in (first, last)


def test_no_mark_becomes_a_part_of_a_graph(api: Api, kind: str) -> None:
    accelerator = TorchAccelerator(torch.device(kind, 0))
    api.is_capturing = True
    assert accelerator.mark() is None
    copy = accelerator.copy([of_host(3)], ahead=False)
    assert (copy.first, copy.last) == (None, None)
    accelerator.order(copy)
    assert api.streams[0].waited == []


def test_memory_is_registered_once_where_the_driver_can(api: Api, kind: str) -> None:
    accelerator = TorchAccelerator(torch.device(kind, 0))
    pages = mmap.mmap(-1, 3 * 4096)
    pinned = accelerator.pin(pages)
    assert [*api.runtime.registered.values()] == ([3 * 4096] if kind == "cuda" else [])
    assert (pinned is None) == (kind == "xpu")
    del pinned
    gc.collect()
    assert api.runtime.registered == {}
    pages.close()  # which nothing looks at any more


@pytest.mark.parametrize("kind", ["cuda"])  # SYCL registers no memory
@pytest.mark.parametrize(
    ("code", "told"), [(2, "error 2: out of memory"), (999, "error 999: unknown error")]
)
def test_a_refused_registration_is_one_line(api: Api, kind: str, code: int, told: str) -> None:
    api.runtime.code = code
    with pytest.raises(DeviceError, match=rf"cuda:0: cannot pin .* 4096 bytes \({told}\): take s"):
        TorchAccelerator(torch.device("cuda", 0)).pin(mmap.mmap(-1, 4096))


@pytest.mark.parametrize(
    ("leaf", "taken"),
    [
        (np.zeros(3, "f4"), True),
        (np.zeros(3, ">f4"), True),
        (np.zeros(3, "u2"), True),
        (np.zeros((), "?"), True),
        (np.zeros(3, np.longdouble), False),
        (np.array(["a"]), False),
        (np.zeros(3, "M8[s]"), False),
        (torch.ones(3), True),
        (torch.ones(3, device="meta"), False),
        ("text", False),
    ],
)
def test_arrays_that_torch_has_are_taken(leaf: Any, taken: bool, api: Api, kind: str) -> None:
    assert TorchAccelerator(torch.device(kind, 0)).takes(leaf) is taken


def test_facts_tell_what_is_known_alone(
    api: Api, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64  535.104.05  Sat Aug 19\n")
    monkeypatch.setattr(device_module, "NVIDIA_DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    facts = TorchAccelerator(torch.device(kind, 0)).facts()
    if kind == "cuda":
        assert facts == {
            "title": "NVIDIA A100 MIG 1g.5gb", "kind": "cuda", "memory_nbytes": 5 * 2**30,
            "driver": "535.104.05", "runtime": "12.4", "mig": True,
        }  # fmt: skip
    else:
        assert facts.items() >= {"kind": "xpu", "driver": "1.3", "memory_nbytes": 2**36}.items()
        assert "mig" not in facts


@pytest.mark.parametrize("kind", ["cuda"])
def test_amds_devices_are_torchs_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: Api, kind: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(device_module, "AMD_DRIVER", tmp_path / "none")
    facts = TorchAccelerator(torch.device("cuda", 0)).facts()
    assert (facts["kind"], facts["runtime"]) == ("hip", "6.2")
    assert not {"driver", "mig"} & facts.keys()


def test_the_slot_is_told_where_the_system_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: Api, kind: str
) -> None:
    monkeypatch.setattr(device_module, "PCI_DEVICES", tmp_path)
    slot = tmp_path / "0000:3b:00.0"
    slot.mkdir()
    (slot / "current_link_width").write_text("16\n")
    (slot / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    api._known |= {"pci_domain_id": 0, "pci_bus_id": 0x3B, "pci_device_id": 0}
    facts = TorchAccelerator(torch.device(kind, 0)).facts()
    assert facts["link"] == "PCIe x16, at most 16.0 GT/s"


def test_a_device_is_found(api: Api, kind: str) -> None:
    for asked, name in (("auto", f"{kind}:1"), (kind, f"{kind}:1"), (f"{kind}:0", f"{kind}:0")):
        found = find_accelerator(asked)
        assert found is not None
        assert found.name == name
    current = current_accelerator()
    assert current is not None
    assert current.name == f"{kind}:1"
    assert torch_pins()
    assert find_accelerator("none") is find_accelerator("cpu") is find_accelerator(None) is None


@pytest.mark.parametrize(
    ("n_devices", "refuses", "visible", "told"),
    [
        (2, "Found no NVIDIA driver on your system.\nPlease check", "", "has no KIND here: Found "),
        (0, "No CUDA GPUs are available", "", "has no KIND here: No CUDA GPUs are available"),
        (2, "", "", "torch sees 2 KIND devices here"),
        (2, "", "MIG-0f1e", "torch sees 2 KIND devices here, of instances of MIG only one for a"),
    ],
)
def test_one_that_is_not_there_is_one_line(
    api: Api,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    n_devices: int,
    refuses: str,
    visible: str,
    told: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    api.n_devices, api.refuses = n_devices, refuses
    with pytest.raises(OptionError) as raised:
        find_accelerator(f"{kind}:7", option="--device")
    assert str(raised.value).startswith(f"--device {kind}:7: ")
    assert told.replace("KIND", kind.upper()) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert find_accelerator("auto") is None or not refuses
