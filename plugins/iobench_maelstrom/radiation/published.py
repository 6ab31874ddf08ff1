"""What both data sets of application A3 share: files by scheme and subset, stand-ins of them."""

from __future__ import annotations

import bisect
import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from iobench.datasets import FileKey, Option, PublishedStep, StandIn
from iobench.errors import OptionError
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.radiation.stand_in import STAND_IN_VERSION

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap3"
LICENCE = "CC BY 4.0, https://apps.ecmwf.int/datasets/licences/general/"
PACKAGE = "climetlab-maelstrom-radiation"
INSTALL = f"pip install 'iobench[climetlab]' && pip install --no-deps {PACKAGE}==0.7.5"
DATES_2020 = tuple(
    f"{datetime.date(2020, 1, 1) + datetime.timedelta(days=30 * number):%Y%m%d}"
    for number in range(13)
)
SPLITS_2019 = {
    "20190131": "validation", "20190531": "test", "20190829": "validation", "20191028": "test",
}  # fmt: skip
"""Days of 2019, as upstream's subsets of records choose them; all of 2020 is for training."""
TIMESTEPS = tuple(map(str, range(0, 3501, 125)))
SCHEME = Option(
    "dataset",
    "The radiation scheme whose outputs are the targets.",
    "tripleclouds",
    ("tripleclouds", "mcica", "3dcorrection", "spartacus"),
)
HR_SCALES = {"K s-1": 1, "K d-1": 24 * 3600}
"""Units of heating rates, and how many of them one kelvin per second is."""
HR_UNITS = Option("hr_units", "Units of heating rates.", "K d-1", tuple(HR_SCALES))


class RadiationFiles(PluginFiles):
    """Files of A3, by radiation scheme and ``keys``, all of which are required."""

    package = PACKAGE
    install = INSTALL

    published: PublishedStep | None = PublishedStep(
        forward_ns=42_000_000,
        backward_ns=0,
        batch_size=512,
        source=(
            "MAELSTROM D2.3, A3: CNN + self-attention, TensorFlow 2.9.1, one A100 40 GB; the whole "
            "step, in which I/O was not measured separately: at most"
        ),
        tables={
            "D2.3, A3, TensorFlow": {
                "epoch": (1801.48753, 1806.99452, 1807.31890, 1812.72032, 3.91004),
                "batch": (0.02241, 0.04203, 0.04195, 5.69129, 0.01004),
            },
        },
    )
    terms_of_use = (
        "By downloading data from this dataset, you agree to the terms and conditions defined at "
        "https://apps.ecmwf.int/datasets/licences/general/"
    )
    synthesis_version = STAND_IN_VERSION
    subsets: Mapping[str, tuple[Sequence[str], ...]]
    stand_in_subsets: tuple[str, ...]
    columns: tuple[int, int, int]

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.solver: str = self.chosen["dataset"]
        names = [key.name for key in self.keys]
        values = [self.chosen[name] for name in names]
        if "subset" in options:
            if also := sorted(set(names) & set(options)):
                raise OptionError(f"subset cannot be combined with {', '.join(also)}")
            values = list(self.subsets[self.chosen["subset"]])
        self.file_numbers = self._combined(values)

    def _combined(self, values: Sequence[Sequence[str]]) -> list[FileKey]:
        names = [key.name for key in self.keys]
        return [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]

    def file_keys(self) -> list[FileKey]:
        """Return the files that were chosen."""
        return self.file_numbers

    @property
    def is_chosen(self) -> bool:
        """True: by default what is small."""
        return True

    def plugin_arguments(self) -> dict[str, Any]:
        """Return the arguments of the plugin for the files chosen: numbers, but for dates."""
        arguments: dict[str, Any] = {"dataset": self.solver}
        for name in (key.name for key in self.keys):
            values = dict.fromkeys(key[name] for key in self.file_numbers)
            arguments[name] = list(values) if name == "date" else list(map(int, values))
        return arguments

    def split_samples(self, lengths: Sequence[int]) -> dict[str, Sequence[int]]:
        """Return the samples of each split, given how many each file has."""
        starts = Starts(lengths).starts
        parts: dict[str, list[range]] = {}
        for number, key in enumerate(self.file_numbers):
            day = key.get("date", key["timestep"])[:8]
            part = range(starts[number], starts[number + 1])
            parts.setdefault(SPLITS_2019.get(day, "train"), []).append(part)
        return {name: _joined(each) for name, each in parts.items()}

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        """Return the files of a stand-in for these keys, of the default scheme."""
        raise NotImplementedError

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        """Return what a stand-in holds; ``scale`` is the share of the columns of subset 2020.

        Up to the files of `stand_in_subsets` these get shorter, beyond there are more of them.
        """
        first = [
            key for name in self.stand_in_subsets for key in self._combined(self.subsets[name])
        ]
        few, some, all_columns = self.columns
        keys, n_columns = first, few if tiny else some
        if scale is not None and not tiny:
            every = self._combined(self.subsets["2020"])
            share = scale * len(every)
            n_columns = all_columns
            if share < len(first):
                n_columns = max(1, round(share * all_columns / len(first)))
            else:
                others = [key for key in every if key not in first]
                keys = [*first, *others[: round(share) - len(first)]]
        plan = StandIn(seed, tuple(self.stand_in_keys(keys)), n_columns, tiny)
        held = set(map(self.file_url, plan.keys))
        for url in self.urls():
            if url not in held:
                raise OptionError(
                    f"{self.name}: {url.removeprefix(BUCKET_URL + '/')} was not found, and the "
                    f"stand-in holds {len(held)} files of tripleclouds, first those of "
                    f"{', '.join(self.stand_in_subsets)}; choose among them, give --data-dir, or a "
                    "larger --scale"
                )
        return plan


class Starts:
    """Where the samples of each file start, counted over all of them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self.starts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the file of a sample and its number in it."""
        file = bisect.bisect_right(self.starts, number) - 1
        return file, number - self.starts[file]


def _joined(parts: Sequence[range]) -> Sequence[int]:
    if all(before.stop == after.start for before, after in itertools.pairwise(parts)):
        return range(parts[0].start, parts[-1].stop)
    return [sample for part in parts for sample in part]
