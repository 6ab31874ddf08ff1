"""`TorchAccelerator` over a stand-in for what torch shows of CUDA, HIP and Intel's XPU.

What no CPU can tell, that the drivers do as torch says, is left to a machine that has them.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="the devices are torch's")
import torch

from iobench.errors import DeviceError, OptionError
from iobench.torch.device import TorchAccelerator, current_accelerator, find_accelerator, torch_pins


class Stream:
    def __init__(self, name, index):
        self.name, self.index = name, index
        self.waited: list[Any] = []
        self.n_events = 0

    def wait_event(self, mark):
        self.waited.append(mark)


class Event:
    def __init__(self, **options):
        self.options = options
        self.stream: Stream | None = None
        self.is_waited_for = False

    def record(self, stream):
        self.stream = stream
        stream.n_events += 1
        self.at_ms = stream.n_events * 0.5

    def query(self):
        return self.is_waited_for

    def synchronize(self):
        self.is_waited_for = True

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


class Runtime:
    """What ``cudart()`` returns."""

    def __init__(self):
        self.registered: dict[int, int] = {}
        self.code = 0

    def cudaHostRegister(self, address, nbytes, flags):
        assert flags == 0
        if not self.code:
            self.registered[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address):
        del self.registered[address]
        return 0


class Api:
    """``torch.cuda`` or ``torch.xpu``, of two devices."""

    def __init__(self, **known):
        self.runtime = Runtime()
        self.chosen = 1
        self.contexts = {1}
        """Devices that some of their memory is taken on: chosen once, or used."""
        self.streams = {index: Stream("current", index) for index in range(2)}
        self.n_devices, self.refuses = 2, ""
        self.is_capturing = False
        self._known = known
        self.Event = Event

    def init(self):
        if self.refuses:
            raise RuntimeError(self.refuses)

    def is_available(self):
        return self.n_devices > 0 and not self.refuses

    def is_initialized(self):
        return self.is_available()

    def is_current_stream_capturing(self):
        return self.is_capturing

    def device_count(self):
        return self.n_devices

    @property
    def current(self):
        return self.streams[self.chosen]

    def current_device(self):
        return self.chosen

    def cudart(self):
        self.contexts.add(self.chosen)  # which its functions begin to use
        return self.runtime

    def current_stream(self, device):
        return self.streams[device.index]

    def Stream(self, device):
        return Stream("copies", device.index)

    @contextlib.contextmanager
    def stream(self, stream):
        """Choose it and its device, and then those before, as ``set_stream`` does for good."""
        before, there = self.current, self.streams[stream.index]
        self._set(stream)
        yield
        self._set(there)
        self._set(before)

    def _set(self, stream):
        self.chosen, self.streams[stream.index] = stream.index, stream
        self.contexts.add(stream.index)

    @contextlib.contextmanager
    def device(self, device):
        """Choose a device; the one before is chosen again, and not used."""
        before, self.chosen = self.chosen, device.index
        self.contexts.add(device.index)
        yield
        self.chosen = before

    def get_device_properties(self, device):
        return SimpleNamespace(**self._known)


class HostTensor(torch.Tensor):
    """Stays where it is, and notes what is asked of it."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    def to(self, *where, **how):
        self.asked.append((*where, how))
        return self.clone()

    def pin_memory(self, *_):
        self.asked.append(("pinned",))
        return self

    def record_stream(self, stream):
        self.asked.append(("used by", stream.name))


@pytest.fixture(params=["cuda", "xpu"])
def kind(request):
    return str(request.param)


@pytest.fixture
def api(kind, monkeypatch):
    known = {"name": "NVIDIA A100 MIG 1g.5gb", "total_memory": 5 * 2**30}
    if kind == "xpu":
        known = {"name": "Data Center GPU", "total_memory": 2**36, "driver_version": "1.3"}
    api = Api(**known)
    for other in ("cuda", "xpu"):
        monkeypatch.setattr(torch, other, api if other == kind else Api())
    getattr(torch, "xpu" if kind == "cuda" else "cuda").n_devices = 0
    monkeypatch.setattr(HostTensor, "asked", [])
    return api


def of_host(*shape):
    return torch.ones(shape).as_subclass(HostTensor)


@pytest.mark.parametrize("ahead", [True, False])
def test_copies_lie_between_marks_of_their_stream(api, kind, ahead):
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


def test_events_tell_times_and_are_used_again(api, kind):
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


def test_memory_is_registered_once_where_the_driver_can(api, kind):
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
def test_a_refused_registration_is_one_line(api, kind):
    api.runtime.code = 2
    with pytest.raises(DeviceError, match=r"cuda:0: cannot pin .* 4096 bytes \(CUDA error 2\): ta"):
        TorchAccelerator(torch.device("cuda", 0)).pin(mmap.mmap(-1, 4096))


def test_a_device_is_found(api, kind):
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
    ("n_devices", "refuses", "told"),
    [
        (2, "Found no NVIDIA driver on your system.\nPlease check", "has no KIND here: Found "),
        (0, "No CUDA GPUs are available", "has no KIND here: No CUDA GPUs are available"),
        (2, "", "torch sees 2 KIND devices here"),
    ],
)
def test_one_that_is_not_there_is_one_line(api, kind, n_devices, refuses, told):
    api.n_devices, api.refuses = n_devices, refuses
    with pytest.raises(OptionError) as raised:
        find_accelerator(f"{kind}:7", option="--device")
    assert str(raised.value).startswith(f"--device {kind}:7: ")
    assert told.replace("KIND", kind.upper()) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert find_accelerator("auto") is None or not refuses
