"""What ``iobench profile`` is asked to do, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from iobench.command_options import OF_VALUES, SHARD_SIZE, parse_format
from iobench.cpus import available_cpus
from iobench.datasets.contract import PIPELINES
from iobench.errors import OptionError
from iobench.loaders.measure import parse_compute
from iobench.profiling.chosen_device import NONE, check_device
from iobench.recording.run_directory import checked_name
from iobench.registry import SOURCE, find_format, unknown_name
from iobench.samples import Window
from iobench.sizes import parse_nbytes
from iobench.sources.request import SourceRequest
from iobench.storage.probe import probe_seconds
from iobench.stores.encoding import Encoding

FRAMEWORKS: Final = ("native", "workers", "torch", "tensorflow", "dali")
OF_STORES: Final = {"tensorflow", "dali"}
"""Frameworks whose own readers are measured: they know stores, not a dataset's files."""
AUTO_PIPELINES: Final = ("auto",)
"""Of users' own files our reader and a plain xarray loop in turns, else our reader alone."""
OF_SOURCES: Final = ("data_dir", "sample_dim", "variables", "download", "tiny")
"""Fields that say how samples are made, beside formats, options and pipelines."""
CACHES: Final = ("as-is", "warm", "cold")
DEFAULT_BATCHES: Final = 200
DEFAULT_STEADY_S: Final = 60.0
DEFAULT_PREFETCH: Final = 2


class FormatChoice(msgspec.Struct, frozen=True):
    """One item of ``--format``: a container, and how samples are to lie in it."""

    name: str  # ``source``, or of a format
    spelled: str  # the item as it was given: what reports call it
    # as `iobench convert` has them, without dashes, some more than once
    options: tuple[tuple[str, str], ...] = ()
    format_options: Mapping[str, str] = {}  # those of the format itself
    encoding: Encoding | None = None  # what is stored with fewer bits; None without loss
    shard_nbytes: int | None = None

    @classmethod
    def parse(cls, item: str) -> Self:
        """Return what an item of `split_formats` says."""
        name, options = parse_format(item)
        if name == SOURCE:
            if ":" in item:
                raise OptionError(
                    f"--format {item}: the original files are read as they are; give {SOURCE} "
                    "without options"
                )
            return cls(name, item)
        fmt = find_format(name)
        values: dict[str, list[str]] = {}
        for key, value in options:
            values.setdefault(key, []).append(value)
            if len(values[key]) > 1 and key not in OF_VALUES:
                raise OptionError(f"--format {item}: {key} is given twice; give it once")
        own = {key: each[0] for key, each in values.items() if key not in (*OF_VALUES, SHARD_SIZE)}
        try:
            if (check := getattr(fmt, "check_options", None)) is not None:
                check(own)
            encoding = Encoding.parse(
                dtype=values.get("dtype", ()),
                ranges=values.get("range", ()),
                codec=own.get("codec"),
            )
            size = values.get(SHARD_SIZE)
            nbytes = None if size is None else parse_nbytes(SHARD_SIZE, size[0])
        except OptionError as error:
            raise OptionError(f"--format {item}: {error}") from error
        return cls(name, item, options, own, encoding, nbytes)


class RunConfig(SourceRequest, frozen=True, kw_only=True):
    """What to profile and how; field for field the options of ``iobench profile``."""

    stores: tuple[str, ...] = ()
    formats: tuple[str, ...] = (SOURCE,)
    pipelines: tuple[str, ...] = ("own",)
    framework: str = "native"
    workers: int | None = None
    prefetch: int | None = None
    batch_size: int | None = None
    batches: int | None = None
    duration_s: float | None = None
    epochs: int | None = None
    compute: str = "published"
    device: str = NONE
    cache: str = "as-is"
    out: Path | None = None
    name: str | None = None
    limits: str = "auto"
    split: str | None = None
    window: str | None = None
    seed: int = 0  # of the order of samples
    digests: bool = False
    darshan: tuple[str, ...] = ("off",)
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        SourceRequest.__post_init__(self)
        if not self.targets:
            self._check_stores_alone()
        self._check_names()
        probe_seconds(self.limits)
        check_device(self.device)
        checked_name(self.name)
        parse_compute(self.compute, None, batch_size=1, sample_nbytes=1)
        if self.window is not None:
            Window.parse(self.window)
        for name in ("batches", "duration_s", "epochs", "batch_size", "prefetch"):
            value = getattr(self, name)
            option = f"--{name.removesuffix('_s').replace('_', '-')}"
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{option} {value}: expected more than 0")
        if self.seed < 0:
            raise OptionError(f"--seed {self.seed}: expected 0 or more")
        if self.workers is not None and self.workers < 0:
            raise OptionError(f"--workers {self.workers}: expected 0 or more")
        self._check_combinations()

    def _check_names(self) -> None:
        """Raise where a name in a list is unknown or there twice."""
        known_pipelines = PIPELINES if self.pipelines != AUTO_PIPELINES else AUTO_PIPELINES
        for what, names, known in (
            ("framework", self.frameworks, FRAMEWORKS),
            ("pipeline", self.pipelines, known_pipelines),
            ("--cache", (self.cache,), CACHES),
        ):
            for name in names:
                if name not in known:
                    raise unknown_name(what, name, known)
        choices = tuple(f"{each.name}{sorted(each.options)}" for each in self.choices)
        for option, given, needed in (
            ("--framework", self.frameworks, True),
            ("--pipeline", self.pipelines, True),
            ("--format", choices, bool(self.targets)),
        ):
            if len(set(given)) < len(given) or (needed and not given):
                raise OptionError(
                    f"{option} {','.join(given)!r}: expected one or more, all different"
                )

    def _check_combinations(self) -> None:
        """Raise OptionError for options that cannot be combined."""
        pipelines = ",".join(self.pipelines)
        if self.asks_for_others and SOURCE not in self.formats:
            raise OptionError(
                f"--pipeline {pipelines}: loads the original files; add {SOURCE} to --format"
            )
        framework = next((name for name in self.frameworks if name in OF_STORES), None)
        if framework and SOURCE in self.formats:
            raise OptionError(
                f"--framework {framework}: its readers know stores, not the original files; give "
                "--format tfrecord, or another store format"
            )
        own = next((name for name in self.frameworks if name in {"torch", *OF_STORES}), "")
        for one, is_one, other, is_other in (
            (f"--framework {own}", bool(own), "--window", self.window is not None),
            ("--pipeline", self.asks_for_others, "--window", self.window is not None),
            ("--batches", self.batches is not None, "--epochs", self.epochs is not None),
        ):
            if is_one and is_other:
                raise OptionError(f"{one} cannot be combined with {other}")
        for option, names in (("--framework", self.frameworks), ("--pipeline", self.pipelines)):
            if self.cache == "cold" and len(names) > 1:
                raise OptionError(
                    f"--cache cold: {' and '.join(names)} read the same files, and would warm them "
                    f"for each other; profile one {option} at a time"
                )

    def _check_stores_alone(self) -> None:
        """Raise OptionError for what says how samples are made, where stores hold all there are."""
        if not self.stores:
            raise OptionError("nothing to profile: name a dataset, files or finished stores")
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in OF_SOURCES}
        given |= {"--format": self.formats, "--option": self.options}
        given["--pipeline"] = self.asks_for_others
        if wrong := [option for option, value in given.items() if value]:
            raise OptionError(
                f"{', '.join(wrong)}: cannot be combined with {self.stores[0]}, a finished store, "
                "which is profiled as it is; name the source it was made of beside it"
            )

    def of_store(self, store: str) -> Self:
        """Return the same of one finished store alone."""
        return replace(
            self, targets=(), stores=(store,), formats=(), pipelines=("own",), data_dir=None,
            options={}, sample_dim=None, variables=(), target_variables=(),
            download=False, tiny=False,
        )  # fmt: skip

    @property
    def choices(self) -> tuple[FormatChoice, ...]:
        """What `formats` says, parsed."""
        return tuple(map(FormatChoice.parse, self.formats))

    @property
    def asks_for_others(self) -> bool:
        """Whether somebody asked that other code than ours loads the original files."""
        return self.pipelines not in (("own",), AUTO_PIPELINES)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """What `framework` names, one by one."""
        return tuple(name.strip() for name in self.framework.split(",") if name.strip())

    @property
    def n_ahead(self) -> int:
        """Batches that each loading process may be ahead; 0 where the loop loads."""
        return (self.prefetch or DEFAULT_PREFETCH) if self.n_workers else 0

    @property
    def n_workers(self) -> int:
        """Loading processes or threads: as asked for, else one per usable CPU."""
        return available_cpus() if self.workers is None else self.workers
