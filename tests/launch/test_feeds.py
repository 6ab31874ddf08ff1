"""What people feed to torch, under ``iobench run``: batches as without, reads and decodes named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

pytest.importorskip("torch", reason="its loaders are what is fed")

pytestmark = pytest.mark.timeout(120)
Seen = Callable[..., Any]
Stage = dict[str, tuple[int, int]]

TRAIN = """
model = torch.nn.Linear(64, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
total = 0.0
for epoch in range(2):
    for batch in loader:
        values = torch.as_tensor(batch[0])
        total += float(values.double().sum())
        optimiser.zero_grad()
        model(values.reshape(-1, 64).float()).square().mean().backward()
        optimiser.step()
print(repr(total))
"""
"""What each script ends with; its batches begin with arrays whose last size divides by 64."""


@pytest.fixture
def seen(
    launch: Callable[..., Any],
    plainly: Callable[..., Any],
    script: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Seen:
    """Run a script without and with iobench; its output and exit must be the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "0")

    def run(text: str, *arguments: object) -> Any:
        command = [sys.executable, script(text + TRAIN), *arguments]
        plain = plainly(*command)
        assert plain.returncode == 0, plain.stderr
        found = launch(*command, detail="sample")
        assert (found.code, found.out) == (0, plain.stdout), found.err
        return found

    return run


def stages(profile: Any) -> Stage:
    """Return the number of spans and the bytes of each stage of loading; -1 where unknown."""
    spans = profile.spans
    spans = spans[(spans["flags"] & (Flag.IO | Flag.DETAIL)) == 0]
    # Warnings show the line of the source that they are about.
    code = [number for number, text in enumerate(profile.strings) if text.endswith(".py")]
    found: Stage = {}
    for kind, label in sorted({(int(s["kind"]), int(s["label"])) for s in spans}):
        of = spans[(spans["kind"] == kind) & (spans["label"] == label)]
        of = of[(of["batch"] >= 0) & ~np.isin(of["detail"], code)]
        name = Kind(kind).spelled + (f":{profile.strings[label]}" if label else "")
        nbytes = of["nbytes"]
        found[name] = len(of), -1 if (nbytes < 0).any() else int(nbytes.sum())
    return found


def loaders(found: Any) -> Iterator[Any]:
    for facts in found.facts:
        yield from facts.loaders


# -- WebDataset ---------------------------------------------------------------------------

WEB = """
import sys, warnings
import torch
import webdataset
warnings.simplefilter("error")
workers, kind = int(sys.argv[1]), sys.argv[2]
samples = webdataset.WebDataset("shard-{0..1}.tar", shardshuffle=False)
samples = samples.decode("rgb").to_tuple("npy", "png", "cls")
if kind == "batched":
    loader = torch.utils.data.DataLoader(samples.batched(4), batch_size=None, num_workers=workers)
else:
    loader = webdataset.WebLoader(samples, batch_size=4, num_workers=workers)
"""


@pytest.fixture
def shards(tmp_path: Path) -> int:
    """Write two tar archives of ten samples; return their bytes."""
    webdataset = pytest.importorskip("webdataset", reason="reads tar archives into pipelines")
    image = pytest.importorskip("PIL.Image", reason="webdataset writes and reads pictures")
    noise = np.random.default_rng(0)
    total = 0
    for shard in range(2):
        path = tmp_path / f"shard-{shard}.tar"
        with webdataset.TarWriter(str(path)) as writer:
            for number in range(10):
                pixels = noise.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                writer.write(
                    {
                        "__key__": f"{shard}_{number}",
                        "npy": noise.normal(size=(32, 64)).astype("f4"),
                        "png": image.fromarray(pixels),
                        "cls": number,
                    }
                )
        total += path.stat().st_size
    return total


@pytest.mark.parametrize(("workers", "kind"), [(0, "loader"), (1, "batched")])
def test_samples_of_tar_archives_are_read_and_decoded(
    seen: Seen, shards: int, workers: int, kind: str
) -> None:
    found = seen(WEB, workers, kind)
    (loader,) = loaders(found)
    assert (loader.workers, loader.name, loader.unseen) == (workers, "WebDataset", [])
    told = stages(found.profile)
    # What follows the last member of an archive is not read.
    assert 2 * (shards - 2 * 20_480) <= told["read"][1] <= 2 * shards
    # Arrays, and pixels as float32, of 20 samples in each of two epochs.
    assert told["decode"] == (40, 40 * (32 * 64 * 4 + 16 * 16 * 3 * 4))
    assert told["open"][0] >= 2 * 2 * 31  # archives and members
    if kind == "batched":
        assert told["collate:batched"][1] == told["decode"][1] + 40 * 8
