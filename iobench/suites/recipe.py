"""What a suite measures, read from TOML and checked: what is fixed, what varies, how often.

::

    [suite]
    title = "Formats"
    repeats = 5                 # runs of each cell, in rounds
    drop = 1                    # of each figure the lowest and highest so many runs
    limit = "10min"             # of one run
    metrics = ["step_s", "wait_s"]
    seed = 0                    # of the order of cells

    [fixed]                     # options of iobench profile, without dashes; and dataset
    batches = 64

    [vary]
    dataset = ["maelstrom-ens10"]
    format = ["source", "zarr", "zarr:dtype=float16"]

    [[skip]]                    # combinations that are none
    format = "zarr:*"

``energy``, ``monitor``, ``limits`` and ``seed`` stand in the environment of the runs.
With a ``command``, as ``"python train.py {format}"``, a cell is a run of that script, whose other
options only stand in it and in the table; ``metric:NAME`` is a figure of its `iobench.metric`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import re
import shlex
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from iobench.command_options import OF_PROFILE, split_formats
from iobench.errors import OptionError, StorageError
from iobench.json_files import read_small_file
from iobench.masking import mask_words, note_secrets
from iobench.registry import unknown_name
from iobench.report.suite_words import OWN
from iobench.report.suite_words import said_cell as said_cell
from iobench.suites.metrics import COMMAND, METRICS, why_not_given

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


DATASET: Final = "dataset"
OF_THE_SUITE: Final = {
    "out": "each run has a folder of its own", "json": "results are files",
}  # fmt: skip
"""Options of a profile that a suite sets, and why."""
KEYS: Final = ("name", "title", "repeats", "drop", "limit", "metrics", "seed")
TABLES: Final = ("suite", "fixed", "vary", "skip")
IN_ENVIRONMENT: Final = {
    "energy": "IOBENCH_ENERGY", "monitor": "IOBENCH_MONITOR", "seed": "IOBENCH_SEED",
}  # fmt: skip
"""What a cell says that stands in the environment of its runs."""
OPTIONS: Final = (
    *(DATASET, COMMAND),
    *(name.removeprefix("--") for name in OF_PROFILE),
    *IN_ENVIRONMENT,
)
DEFAULT_METRICS: Final = ("step_s", "wait_s", "exposed_share", "samples_per_s")
MOST_CELLS, MOST_REPEATS = 10_000, 1000
UNITS_S: Final = {"s": 1, "min": 60, "h": 3600}
BOOLEAN: Final = ("true", "false")
MAX_NBYTES: Final = 1 << 16

Values = tuple[str, ...]
"""Of one option: mostly one; several of an option that may be repeated."""


class Cell(msgspec.Struct, frozen=True):
    """One configuration of a suite: its values that vary, with the dataset, and all its options.

    ``dataset`` is no option of ``iobench profile``, but what is profiled.
    """

    number: int
    values: Mapping[str, str]
    options: Mapping[str, Values]

    @property
    def name(self) -> str:
        """What people call it: its values."""
        return said_cell(self.values)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What tells it from others, as results have it too."""
        return tuple(sorted(self.values.items()))

    @property
    def folder(self) -> str:
        """A plain name for a folder, distinct within a recipe."""
        plain = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", " ".join(self.values.values()))
        return f"{self.number:03d}-{plain[:80]}"

    @property
    def words(self) -> list[str]:
        """What stands behind ``iobench``: a profile, or a run of its command."""
        if COMMAND in self.options:
            text = " ".join(self.options[COMMAND])
            try:
                words = shlex.split(text)
            except ValueError as error:
                raise OptionError(f"{COMMAND} {text!r}: {error}, expected a command") from error
            for name, values in self.options.items():
                words = [word.replace(f"{{{name}}}", " ".join(values)) for word in words]
            return ["run", "--no-report", "--", *words]
        words = ["profile", *self.options[DATASET]]
        if "pipeline" not in self.options:
            words.append("--pipeline=own")  # auto would be two runs of files of one's own
        for name, values in self.options.items():
            if name == DATASET or name in IN_ENVIRONMENT:
                continue
            if OF_PROFILE[f"--{name}"].is_flag:
                words += [f"--{name}"] * (values == ("true",))
            else:
                words += [f"--{name}={value}" for value in values]
        return words

    @property
    def environment(self) -> dict[str, str]:
        """What is set in the environment of its runs."""
        return {
            variable: self.options[name][0]
            for name, variable in IN_ENVIRONMENT.items()
            if name in self.options
        }

    @property
    def masked_options(self) -> dict[str, str]:
        """Its options as they are written and shown: without secrets."""
        return {name: " ".join(_masked(name, each)) for name, each in self.options.items()}


class SuiteRecipe(msgspec.Struct, frozen=True):
    """What a suite measures; cells that match all patterns of a ``skip`` are none.

    ``drop`` lowest and highest runs count for no mean; ``seed`` is of the order of cells.
    """

    name: str
    title: str
    fixed: Mapping[str, Values]
    vary: Mapping[str, tuple[Values, ...]]
    skip: tuple[Mapping[str, Values], ...]
    metrics: tuple[str, ...]
    repeats: int
    drop: int
    limit_s: float
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Return it as values of JSON, of which `from_json` makes the same, but for secrets."""
        suite = {key: getattr(self, key) for key in KEYS if key != "limit"}
        return {
            "suite": suite | {"limit": f"{self.limit_s:g}s", "metrics": list(self.metrics)},
            "fixed": {key: _masked(key, values) for key, values in self.fixed.items()},
            "vary": {
                key: [_masked(key, each) for each in every] for key, every in self.vary.items()
            },
            "skip": [{key: _masked(key, v) for key, v in each.items()} for each in self.skip],
        }

    @classmethod
    def from_json(cls, tables: Mapping[str, Any], *, where: str, name: str = "") -> Self:
        """Return the recipe that tables say, of TOML or of `to_json`.

        Raises
        ------
        OptionError, UnknownNameError
            If something is wrong with it; the message names ``where`` and the key.
        """
        return cls(**_checked(tables, where, name))

    @property
    def digest(self) -> str:
        """The same of recipes that measure the same in the same way."""
        text = json.dumps(self.to_json() | {"version": 1}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def cells(self) -> tuple[Cell, ...]:
        """Return its cells, in the order of the recipe."""
        cells: list[Cell] = []
        for values in itertools.product(*self.vary.values()):
            varied = dict(zip(self.vary, values, strict=True))
            options = dict(self.fixed) | varied
            if any(_matches(options, each) for each in self.skip):
                continue
            named = {DATASET: options[DATASET]} | varied
            texts = {key: " ".join(_masked(key, each)) for key, each in named.items()}
            cells.append(Cell(len(cells), texts, options))
        return tuple(cells)


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with iobench."""
    folder = files("iobench.suites") / "recipes"
    names = (each.name for each in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_recipe(source: str | Path, changes: Sequence[str] = ()) -> SuiteRecipe:
    """Read a recipe from a TOML file, or one that comes with iobench by its name.

    ``changes`` are ``KEY=VALUE`` each: a key of ``[suite]``, or an option; several values of what
    varies with commas. ``vary.KEY`` and ``fixed.KEY`` say which.

    Raises
    ------
    OptionError, UnknownNameError
        If there is no such recipe, or something is wrong with it.
    StorageError
        If the file cannot be read.
    """
    path, name = Path(source), str(source)
    if path.suffix == ".toml" or path.exists():
        where, name = str(path), path.stem
        try:
            data = read_small_file(path, limit=MAX_NBYTES)
        except OSError as error:
            raise StorageError(
                f"{path}: {error.strerror or error}; expected a recipe, or one of "
                f"{', '.join(recipe_names())}"
            ) from error
    else:
        if name not in recipe_names():
            raise unknown_name("recipe", name, recipe_names())
        where = f"recipe {name}"
        data = (files("iobench.suites") / "recipes" / f"{name}.toml").read_bytes()
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where}: is no TOML ({error})") from error
    changed = {_change(tables, change) for change in changes}
    recipe = SuiteRecipe.from_json(tables, where=where, name=name)
    _check_skips(recipe, changed, where)
    for cell in recipe.cells():
        note_secrets(cell.words)
    return recipe


def _change(tables: dict[str, Any], change: str) -> str:
    """Change what a recipe says, and return which key that is of."""
    key, equals, value = change.partition("=")
    table, dot, key = key.strip().rpartition(".")
    key = key.replace("_", "-")
    if not equals or not key:
        raise OptionError(f"--set {change}: expected KEY=VALUE, as repeats=3")
    if not dot:
        varied = {each.replace("_", "-") for each in tables.get("vary") or {}}
        table = "suite" if key in KEYS else "vary" if key in varied else "fixed"
        if table == "fixed" and key not in OPTIONS:
            raise OptionError(f"--set {change}: {_unknown(key, [*KEYS, *OPTIONS])}")
    if table not in TABLES[:3]:
        raise OptionError(f"--set {change}: expected vary.{key}, fixed.{key} or {key}")
    for other in ("fixed", "vary"):  # it says so now
        tables[other] = {
            name: each
            for name, each in (tables.get(other) or {}).items()
            if name.replace("_", "-") != key or table == "suite"
        }
    several = split_formats([value]) if key == "format" else value.split(",")
    said: Any = value
    if table == "vary" or key == "metrics":
        said = [each.strip() for each in several if each.strip()]
    elif table == "suite" and re.fullmatch(r"-?\d{1,18}", value):
        said = int(value)
    tables.setdefault(table, {})[key] = said
    return key


def _check_skips(recipe: SuiteRecipe, changed: Collection[str], where: str) -> None:
    """Raise OptionError for what is skipped and in no cell, unless that is by a change."""
    every = {key: (values,) for key, values in recipe.fixed.items()} | dict(recipe.vary)
    for skip in recipe.skip:
        if not skip:
            raise OptionError(f"{where}: [[skip]]: expected options and their values")
        for key in skip.keys() - changed:
            values = every.get(key, ())
            for pattern in skip[key]:
                if not any(_fits(each, pattern) for each in values):
                    there = ", ".join(map(" ".join, values)) or f"no {key} in [fixed] or [vary]"
                    raise OptionError(
                        f"{where}: [[skip]] {key} {pattern!r}: no cell has that; there is {there}"
                    )


class _SuiteTable(msgspec.Struct, frozen=True):
    """The table ``[suite]``."""

    name: Annotated[str, Meta(pattern=r"^[\w.+-]{1,80}$")]
    title: str
    repeats: Annotated[int, Meta(ge=1, le=MOST_REPEATS)] = 5
    drop: Annotated[int, Meta(ge=0, le=MOST_REPEATS)] = 1
    limit: str = "600s"
    metrics: Annotated[tuple[str, ...], Meta(min_length=1)] = DEFAULT_METRICS
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0


def _checked(tables: Mapping[str, Any], where: str, name: str) -> dict[str, Any]:
    for table, value in tables.items():
        if table not in TABLES:
            raise OptionError(f"{where}: {unknown_name('table', table, TABLES)}")
        expected = list if table == "skip" else dict
        if not isinstance(value, expected):
            raise OptionError(
                f"{where}: {table}: expected [{'[skip]' if expected is list else table}]"
            )
    suite = _suite_table(tables.get("suite", {}), where, name)
    fixed = {
        _option(key, where, "fixed"): _values(key, value, f"{where}: [fixed] {key}")
        for key, value in tables.get("fixed", {}).items()
    }
    vary = {}
    for key, value in tables.get("vary", {}).items():
        at = f"{where}: [vary] {key}"
        if not isinstance(value, list) or not value:
            raise OptionError(f"{at}: {value!r}; expected a list of values")
        vary[_option(key, where, "vary")] = every = tuple(_values(key, each, at) for each in value)
        if len(set(every)) != len(every):
            raise OptionError(f"{at}: expected distinct values")
    if both := fixed.keys() & vary.keys():
        raise OptionError(f"{where}: {', '.join(sorted(both))} is in [fixed] and in [vary]")
    if DATASET not in fixed | vary:
        raise OptionError(f"{where}: no {DATASET} in [fixed] or [vary]: nothing to profile")
    for values in (fixed.get(DATASET, ()), *vary.get(DATASET, ())):
        if any(each.startswith("-") or not each for each in values):
            raise OptionError(f"{where}: {DATASET} {' '.join(values)!r}: expected a name or a file")
    checked: dict[str, Any] = {
        **{key: getattr(suite, key) for key in KEYS if key not in ("limit", "metrics")},
        "metrics": tuple(dict.fromkeys(suite.metrics)),
        "limit_s": _seconds(suite.limit, f"{where}: [suite] limit"),
        "fixed": fixed,
        "vary": vary,
        "skip": tuple(_skipped(each, where) for each in tables.get("skip", [])),
    }
    _check_cells(SuiteRecipe(**checked), where)
    return checked


def _suite_table(table: Mapping[str, Any], where: str, name: str) -> _SuiteTable:
    for key in table:
        if key not in KEYS:
            raise OptionError(f"{where}: [suite]: {unknown_name('key', key, KEYS)}")
    name = table.get("name", name)
    try:
        suite = msgspec.convert({"name": name, "title": name, **table}, _SuiteTable)
    except msgspec.ValidationError as error:
        raise OptionError(f"{where}: [suite]: {error}") from None
    for metric in suite.metrics:
        if metric not in METRICS and not metric.startswith(OWN):
            near = unknown_name("metric", metric, METRICS)
            raise OptionError(f"{where}: [suite] metrics: {near}")
    if suite.repeats <= 2 * suite.drop:
        raise OptionError(
            f"{where}: of {suite.repeats} repeats the {suite.drop} fastest and slowest are "
            "dropped, and none is left; give more repeats, or drop = 0"
        )
    return suite


def _check_cells(recipe: SuiteRecipe, where: str) -> None:
    n_cells = 1
    for each in recipe.vary.values():
        n_cells *= len(each)
    if n_cells > MOST_CELLS:
        raise OptionError(f"{where}: {n_cells} cells; expected {MOST_CELLS} at most")
    cells = recipe.cells()
    if not cells:
        raise OptionError(f"{where}: no cell is left; every combination is in a [[skip]]")
    for metric in recipe.metrics:
        reasons = [why_not_given(metric, each.options) for each in cells]
        if all(reasons):
            raise OptionError(f"{where}: [suite] metrics: no cell can give {metric}: {reasons[0]}")


def _option(key: str, where: str, table: str) -> str:
    name = key.replace("_", "-")
    if name in OF_THE_SUITE:
        raise OptionError(
            f"{where}: [{table}] {key} is the suite's own ({OF_THE_SUITE[name]}); leave it out"
        )
    if name not in OPTIONS:
        names = [each for each in OPTIONS if each not in OF_THE_SUITE]
        raise OptionError(f"{where}: [{table}]: {_unknown(key, names)}")
    return name


def _unknown(key: str, names: Sequence[str]) -> str:
    near = str(unknown_name("option", key, names))
    unknown = f"unknown option {key[:80]!r}: see iobench profile -h"
    return near if "did you mean" in near else unknown


def _values(key: str, value: Any, where: str) -> Values:
    """Return the value of an option as text, several of one that is repeated."""
    option = OF_PROFILE.get(f"--{key.replace('_', '-')}")
    if option is not None and option.is_flag:
        text = str(value[0] if isinstance(value, list) and len(value) == 1 else value).lower()
        if text not in BOOLEAN:
            raise OptionError(f"{where}: {value!r}; expected true or false")
        return (text,)
    several = value if isinstance(value, list) else [value]
    if not several or not all(
        isinstance(each, str | int | float) and not isinstance(each, bool) for each in several
    ):
        raise OptionError(f"{where}: {value!r}; expected text or a number")
    return tuple(map(str, several))


def _skipped(patterns: Any, where: str) -> Mapping[str, Values]:
    if not isinstance(patterns, dict):
        raise OptionError(f"{where}: [[skip]]: expected options and their values")
    skip = {}
    for key, value in patterns.items():
        several = value if isinstance(value, list) else [value]
        texts = (str(each).lower() if isinstance(each, bool) else str(each) for each in several)
        skip[_option(key, where, "[skip]")] = tuple(texts)
    return skip


def _masked(name: str, values: Values) -> list[str]:
    """Return values of an option without what is secret in them."""
    start = f"--{name}="
    return [each.removeprefix(start) for each in mask_words([start + each for each in values])]


def _matches(options: Mapping[str, Values], skip: Mapping[str, Values]) -> bool:
    return bool(skip) and all(
        any(_fits(options.get(key), pattern) for pattern in patterns)
        for key, patterns in skip.items()
    )


def _fits(values: Values | None, pattern: str) -> bool:
    return values is not None and fnmatch.fnmatchcase(" ".join(values), pattern)


def _seconds(text: str, where: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?(s|min|h)", text)
    limit_s = float(match[1]) * UNITS_S[match[2]] if match else 0.0
    if not limit_s:
        raise OptionError(f"{where} {text!r}: expected a time such as 90s, 10min or 1h")
    return limit_s
