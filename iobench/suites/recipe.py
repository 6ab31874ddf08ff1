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
import math
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from iobench.command_options import OF_PROFILE, split_formats
from iobench.errors import OptionError, StorageError
from iobench.json_files import read_small_file
from iobench.masking import mask_words, note_secrets
from iobench.registry import unknown_name
from iobench.report.suite_words import OWN, said_cell
from iobench.sizes import parse_quantity
from iobench.suites.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DATASET: Final = "dataset"
COMMAND: Final = "command"
IN_ENVIRONMENT: Final = {
    "energy": "IOBENCH_ENERGY", "monitor": "IOBENCH_MONITOR", "seed": "IOBENCH_SEED",
}  # fmt: skip
OPTIONS: Final = (
    *(DATASET, COMMAND, *IN_ENVIRONMENT),
    *(name.removeprefix("--") for name in OF_PROFILE if name not in ("--out", "--json")),
)
RECIPES: Final = Path(__file__).parent / "recipes"
MOST_CELLS: Final = 10_000
UNITS_S: Final = {"s": 1, "min": 60, "h": 3600}
MAX_NBYTES: Final = 1 << 16

Values = tuple[str, ...]
"""Of one option: mostly one; several of an option that may be repeated."""
Value = str | bool | int | float | list[str | int | float]


class Cell(msgspec.Struct, frozen=True):
    """One configuration of a suite: its values that vary, with the dataset, and all its options."""

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
        variables = IN_ENVIRONMENT.items()
        return {each: self.options[name][0] for name, each in variables if name in self.options}

    @property
    def masked_options(self) -> dict[str, str]:
        """Its options as they are written and shown: without secrets."""
        return _texts_of(self.options)


class _Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table ``[suite]``."""

    name: str = ""
    title: str = ""
    repeats: Annotated[int, Meta(ge=1, le=1000)] = 5
    drop: Annotated[int, Meta(ge=0)] = 1
    limit: str = "600s"
    metrics: Annotated[tuple[str, ...], Meta(min_length=1)] = (
        "step_s", "wait_s", "exposed_share", "samples_per_s",
    )  # fmt: skip
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0


KEYS: Final = _Suite.__struct_fields__


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of a recipe."""

    suite: _Suite = _Suite()
    fixed: dict[str, Value] = {}
    vary: dict[str, Annotated[list[Value], Meta(min_length=1)]] = {}
    skip: list[dict[str, Value]] = []


class SuiteRecipe(_Suite, frozen=True, kw_only=True):
    """What a suite measures; cells that match all patterns of a ``skip`` are none."""

    fixed: dict[str, Values]
    vary: dict[str, tuple[Values, ...]]
    skip: tuple[dict[str, Values], ...]

    @property
    def limit_s(self) -> float:
        """How long one run may take."""
        return parse_quantity("limit", self.limit, UNITS_S, "a time such as 90s, 10min or 1h")

    def to_json(self) -> dict[str, Any]:
        """Return it as values of JSON, of which `from_json` makes the same, but for secrets."""
        suite = {key: getattr(self, key) for key in KEYS}
        return {
            "suite": suite | {"limit": f"{self.limit_s:g}s", "metrics": list(self.metrics)},
            "fixed": {key: _masked(key, values) for key, values in self.fixed.items()},
            "vary": {k: [_masked(k, each) for each in every] for k, every in self.vary.items()},
            "skip": [{key: _masked(key, v) for key, v in each.items()} for each in self.skip],
        }

    @classmethod
    def from_json(cls, tables: Mapping[str, Any], *, where: str, name: str = "") -> Self:
        """Return the recipe that tables say, of TOML or of `to_json`."""
        try:
            read = msgspec.convert(tables, _Tables)
            suite = msgspec.structs.asdict(read.suite)
            suite["name"] = read.suite.name or name
            suite["title"] = read.suite.title or suite["name"]
            recipe = cls(
                **suite,
                fixed={_option(k): _values(k, each) for k, each in read.fixed.items()},
                vary={
                    _option(k): tuple(_values(k, each) for each in every)
                    for k, every in read.vary.items()
                },
                skip=tuple({_option(k): _texts(v) for k, v in each.items()} for each in read.skip),
            )
            _check(recipe)
        except (msgspec.ValidationError, OptionError) as error:
            raise OptionError(f"{where}: {error}") from None
        return recipe

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
            if not any(_matches(options, each) for each in self.skip):
                named = {DATASET: options[DATASET]} | varied
                cells.append(Cell(len(cells), _texts_of(named), options))
        return tuple(cells)


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with iobench."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(source: str | Path, changes: Sequence[str] = ()) -> SuiteRecipe:
    """Read a recipe from a TOML file, or one that comes with iobench by its name.

    ``changes`` are ``KEY=VALUE`` each: a key of ``[suite]``, or an option, which varies if there
    are several values with commas between.
    """
    path = Path(source)
    if path.suffix != ".toml" and not path.exists():
        if str(source) not in recipe_names():
            raise unknown_name("recipe", str(source), recipe_names())
        path = RECIPES / f"{source}.toml"
    try:
        tables = tomllib.loads(read_small_file(path, limit=MAX_NBYTES).decode())
    except OSError as error:
        why = f"expected a recipe, or one of {', '.join(recipe_names())}"
        raise StorageError(f"{path}: {error.strerror or error}; {why}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path}: is no TOML ({error})") from error
    for change in changes:
        _change(tables, change)
    recipe = SuiteRecipe.from_json(tables, where=str(source), name=path.stem)
    for cell in recipe.cells():
        note_secrets(cell.words)
    return recipe


def _change(tables: dict[str, Any], change: str) -> None:
    """Change what a recipe says."""
    key, equals, value = map(str.strip, change.partition("="))
    if not equals or not key:
        raise OptionError(f"--set {change}: expected KEY=VALUE, as repeats=3")
    if key in KEYS:
        tables.setdefault("suite", {})[key] = (
            value.split(",") if key == "metrics" else int(value) if value.isdecimal() else value
        )
        return
    try:
        key = _option(key)
    except OptionError as error:
        raise OptionError(f"--set {change}: {error}") from None
    fixed, vary = (tables.setdefault(name, {}) for name in ("fixed", "vary"))
    several = split_formats([value]) if key == "format" else value.split(",")
    if key in vary or len(several) > 1:
        fixed.pop(key, None)
        vary[key] = [each.strip() for each in several]
    else:
        fixed[key] = value


def _check(recipe: SuiteRecipe) -> None:
    """Raise OptionError for tables that make no suite."""
    vary, why = recipe.vary, ""
    datasets = (recipe.fixed.get(DATASET, ()), *vary.get(DATASET, ()))
    named = [each for several in datasets for each in several]
    unknown = [each for each in recipe.metrics if each not in METRICS and not each.startswith(OWN)]
    recipe.to_json()  # raises what is wrong with its limit
    if recipe.repeats <= 2 * recipe.drop:
        why = f"repeats {recipe.repeats}: expected more than drop = {recipe.drop} leaves out twice"
    elif both := recipe.fixed.keys() & vary.keys():
        why = f"{', '.join(sorted(both))} is in [fixed] and in [vary]"
    elif not named or any(not each or each.startswith("-") for each in named):
        why = f"{DATASET}: expected a name or a file in [fixed] or [vary]"
    elif (n_cells := math.prod(map(len, vary.values()))) > MOST_CELLS:
        why = f"{n_cells} cells; expected {MOST_CELLS} at most"
    elif any(len({*every}) != len(every) for every in vary.values()):
        why = "[vary]: expected distinct values"
    elif not recipe.cells():
        why = "no cell is left; every combination is in a [[skip]]"
    elif unknown:
        why = f"metrics: {unknown_name('metric', unknown[0], METRICS)}"
    if why:
        raise OptionError(why)


def _option(key: str) -> str:
    name = key.replace("_", "-")
    if name not in OPTIONS:
        raise OptionError(str(unknown_name("option", key, dict.fromkeys((*KEYS, *OPTIONS)))))
    return name


def _texts(value: Value) -> Values:
    every = value if isinstance(value, list) else [value]
    return tuple(str(each).lower() if isinstance(each, bool) else str(each) for each in every)


def _values(key: str, value: Value) -> Values:
    """Return the value of an option as text, several of one that is repeated."""
    texts, option = _texts(value), OF_PROFILE.get(f"--{key.replace('_', '-')}")
    if option is not None and option.is_flag and texts not in (("true",), ("false",)):
        raise OptionError(f"{key}: {value!r}; expected true or false")
    return texts


def _masked(name: str, values: Values) -> list[str]:
    """Return values of an option without what is secret in them."""
    start = f"--{name}="
    return [each.removeprefix(start) for each in mask_words([start + each for each in values])]


def _texts_of(options: Mapping[str, Values]) -> dict[str, str]:
    return {name: " ".join(_masked(name, each)) for name, each in options.items()}


def _matches(options: Mapping[str, Values], skip: Mapping[str, Values]) -> bool:
    return bool(skip) and all(
        key in options
        and any(fnmatch.fnmatchcase(" ".join(options[key]), pattern) for pattern in patterns)
        for key, patterns in skip.items()
    )
