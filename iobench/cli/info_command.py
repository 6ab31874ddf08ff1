"""``iobench info``: what a dataset, a store format, a store or a run is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from iobench.cli.source_options import (
    DataDir,
    DatasetOptions,
    FilesGlob,
    StoreDir,
    split_options,
)

__all__ = ["info"]

FEW = 8
"""More of a kind (channels, files, shards) are shortened."""
INDENT = 15


def info(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|STORE|RUN",
            help="A dataset, a store format, a file or Zarr store of your own, or the folder of a "
            "store or run.",
        ),
    ],
    data_dir: DataDir = None,
    files: FilesGlob = None,
    option: DatasetOptions = None,
    store_dir: StoreDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say what a dataset's samples are, a format's options, what a file, a store or a run is."""
    from iobench.cli.descriptions import (
        describe_dataset,
        describe_files,
        describe_format,
        describe_run,
        describe_store,
    )
    from iobench.cli.screen import TerminalScreen, say
    from iobench.datasets.zarr_arrays.store import is_zarr
    from iobench.errors import OptionError
    from iobench.profiles.folders import holds_runs
    from iobench.registry import dataset_names, format_names, unknown_name
    from iobench.stores.manifest import MANIFEST_NAME

    path = Path(target)
    if target in dataset_names():
        facts = describe_dataset(
            target,
            options=split_options(option or []),
            data_dir=data_dir,
            files=files,
            store_dir=store_dir,
            screen=TerminalScreen(),
        )
    elif data_dir or option or store_dir or files:
        raise OptionError(
            f"--data-dir, --files, --option and --store-dir are for datasets; {target} is the name "
            "of none"
        )
    elif target in format_names():
        facts = describe_format(target)
    elif (path / MANIFEST_NAME).exists():
        facts = describe_store(path)
    elif holds_runs(path):
        facts = describe_run(path)
    elif path.is_file() or is_zarr(path):
        facts = describe_files(path)
    elif path.exists():
        raise OptionError(
            f"{path}: is neither a store (it has no {MANIFEST_NAME}) nor a run (no run.json) nor "
            "a Zarr store; name a file in it"
        )
    else:
        raise unknown_name("dataset", target, dataset_names())
    if json:
        import json as json_text

        typer.echo(json_text.dumps(facts, indent=1))
    else:
        show = {
            "dataset": _dataset_lines,
            "file": _file_lines,
            "format": _format_lines,
            "store": _store_lines,
            "run": _run_lines,
        }
        for line in show[facts["kind"]](facts):
            say(line)


def _dataset_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from iobench.report.units import count, nbytes

    yield f"{facts['name']}: {facts['title']}"
    yield _line("told from", facts["told_from"])
    for number, option in enumerate(facts["options"]):
        text = f"--option {option['name']}=...  {option['values']}: {option['text']}"
        yield from _wrapped("options" if number == 0 else "", text)
    files = facts["files"]
    shown = _few([*files["names"]])
    yield _line("files", f"{count(files['n_files'])}, {nbytes(files['nbytes'])}: {shown}")
    splits = ", ".join(f"{name} {count(n)}" for name, n in facts["splits"].items())
    coordinate = " to ".join(facts["coordinate"])
    told = "; ".join(filter(None, (count(facts["n_samples"]), splits, coordinate)))
    yield _line("samples", told)
    yield _line("windows", _windows_text(facts["windows"]))
    yield from _sample_lines(facts["sample"])
    yield from _normalisation_lines(facts["normalisation"])
    yield _line("pipelines", ", ".join(facts["pipelines"]))
    if facts["fused"]:
        yield _line("fused", f"{'+'.join(facts['fused'])}: cannot be told apart")
    yield from _published_lines(facts["published"])
    for name in ("terms_of_use", "citation"):
        yield from _wrapped(name.replace("_", " "), facts[name] or "unknown")


def _file_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from iobench.report.units import count, nbytes
    from iobench.report.wrapping import plain

    size = f", {nbytes(facts['nbytes'])}" if facts["nbytes"] is not None else ""
    yield plain(f"{facts['path']}: {facts['format']}{size}")
    lengths = ", ".join(f"{dim} {count(length)}" for dim, length in facts["dims"].items())
    yield from map(plain, _wrapped("dimensions", lengths or "none"))
    for number, variable in enumerate(facts["variables"]):
        axes = ", ".join(
            f"{dim} {length}"
            for dim, length in zip(variable["dims"], variable["shape"], strict=True)
        )
        chunk = f", chunks {' x '.join(map(str, variable['chunk']))}" if variable["chunk"] else ""
        text = (
            f"{variable['name']} ({axes}) {variable['dtype']}, "
            f"{variable['units'] or 'units unknown'}{chunk}; {variable['codec']}"
        )
        yield from map(plain, _wrapped("variables" if number == 0 else "", text))
    for name in ("coordinates", "skipped"):
        if facts[name]:
            yield from map(plain, _wrapped(name, _plain(facts[name])))
    candidates = ", ".join(f"{dim} ({count(facts['dims'][dim])})" for dim in facts["sample_dims"])
    yield from map(plain, _wrapped("--sample-dim", candidates or "none: no dimension has two"))
    if facts["command"]:
        yield plain(f"Profile it, a sample for each index: {facts['command']}")


def _windows_text(windows: Mapping[str, Any] | None) -> str:
    from iobench.report.units import count

    if windows is None:
        return "none: samples are in no row along which they follow each other"
    rows = "one row" if windows["n_rows"] == 1 else f"{count(windows['n_rows'])} rows"
    units = f", {windows['position_units']}" if windows["position_units"] else ""
    return f"--window lays them over {rows}{units}"


def _published_lines(published: Mapping[str, Any] | None) -> Iterator[str]:
    from iobench.report.units import duration

    if published is None:
        yield _line("published step", "none")
        return
    forward, backward = published["forward_ns"], published["backward_ns"]
    yield _line(
        "published step",
        f"{duration(forward + backward)} for a batch of {published['batch_size']} "
        f"(forward {duration(forward)}, backward {duration(backward)})",
    )
    yield from _wrapped("", published["source"])


def _format_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}: a store format, layout version {facts['version']}"
    for paragraph in facts["text"]:
        yield from _wrapped("", paragraph)


def _store_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from iobench.report.units import count, nbytes

    dataset = facts["dataset"] or "unknown"
    yield f"{facts['path']}: {facts['format']} store of {dataset}"
    yield _line("format", f"{facts['format']}, layout version {facts['format_version']}")
    yield _line("codec", facts["codec"] or "none")
    yield _line("samples", f"{count(facts['n_samples'])}, {nbytes(facts['nbytes'])}")
    for number, shard in enumerate(facts["shards"][:FEW]):
        told = f"{count(shard['n_samples'])} samples, {nbytes(shard['nbytes'])}"
        yield _line("shards" if number == 0 else "", f"{_few(shard['files'])}: {told}")
    if len(facts["shards"]) > FEW:
        yield _line("", f"and {count(len(facts['shards']) - FEW)} more")
    yield from _sample_lines(facts["sample"])
    yield from _normalisation_lines(facts["normalisation"])
    if facts["options"]:
        yield _line("options", ", ".join(f"{k}={v}" for k, v in facts["options"].items()))
    yield from _value_lines("source", facts["provenance"])


def _run_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield facts["path"]
    for run in facts["runs"]:
        yield f"as {run.get('format', 'unknown')}"
        rest = {key: value for key, value in run.items() if key not in ("format", "version")}
        for key in sorted(rest):
            yield from _value_lines(key.replace("_", " "), rest[key])


def _sample_lines(sample: Mapping[str, Any]) -> Iterator[str]:
    from iobench.report.units import nbytes

    yield _line("sample", nbytes(sample["nbytes"]))
    for variable in sample["variables"]:
        lengths = zip(variable["dims"], variable["shape"], strict=True)
        axes = ", ".join(f"{dim} {length}" for dim, length in lengths)
        units = f", {variable['units']}" if variable["units"] else ", units unknown"
        yield _line(
            "", f"{variable['role']} {variable['name']} ({axes}) {variable['dtype']}{units}"
        )
        if variable["channels"]:
            yield from _wrapped("", f"  channels: {_few(variable['channels'], 32)}")


def _normalisation_lines(normalisation: Any) -> Iterator[str]:
    if not normalisation:
        yield _line("normalisation", "none")
    else:
        yield from _value_lines("normalisation", normalisation)


def _value_lines(name: str, value: Any) -> Iterator[str]:
    """Yield a value of JSON: what is deeper than a list of texts, indented by its keys."""
    if isinstance(value, Mapping):
        for number, (key, inner) in enumerate(value.items()):
            yield from _wrapped(name if number == 0 else "", f"{key}: {_plain(inner)}")
    else:
        yield from _wrapped(name, _plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return _few([_plain(inner) for inner in value]) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _few(names: Sequence[str], few: int = FEW) -> str:
    if len(names) <= few:
        return ", ".join(names)
    return f"{', '.join(names[: few - 1])}, ... {names[-1]} ({len(names)} in all)"


def _line(name: str, text: str) -> str:
    return f"  {name:{INDENT}} {text}".rstrip()


def _wrapped(name: str, text: str) -> Iterator[str]:
    import textwrap

    lines = textwrap.wrap(text, 77 - INDENT, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines or [""]):
        yield _line(name if number == 0 else "", line)
