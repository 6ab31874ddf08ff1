"""What ``iobench info`` says, as sections: from the facts that its ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from iobench.cli.store_tables import quality_told, statistics_told
from iobench.report.document import (
    Block,
    Cell,
    Command,
    Quantity,
    Section,
    Sentence,
    properties,
    sentences,
)
from iobench.report.script_lines import commit_words
from iobench.report.units import UNKNOWN, count, duration, nbytes
from iobench.runs.run_facts import RunFacts

FEW: Final = 8
"""More of a kind (channels, files, shards) are shortened."""
ALONG_ONE: Final = "--window DIM=... makes windows along one of the dimensions"
FEW_CHANNELS: Final = 32

Row = tuple[Cell, ...]


def info_title(facts: Mapping[str, Any]) -> tuple[str, tuple[Section | Block, ...]]:
    """Return the title of what ``iobench info`` says, and what stands below."""
    match facts["kind"]:
        case "dataset":
            return f"{facts['name']}: {facts['title']}", (properties(_dataset_rows(facts)),)
        case "file":
            size = f", {nbytes(facts['nbytes'])}" if facts["nbytes"] is not None else ""
            text: list[Block] = [properties(_file_rows(facts))]
            if facts["command"]:
                text.append(Command(facts["command"], "Profile it with one sample per index"))
            several = f" in {count(facts['n_files'])} files" if facts["n_files"] > 1 else ""
            if several:
                text.insert(0, Sentence(f"Of the first, {facts['first']}:"))
            return f"{facts['path']}: {facts['format']}{several}{size}", tuple(text)
        case "format":
            title = f"{facts['name']}: a store format, layout version {facts['version']}"
            return title, sentences(facts["text"])
        case "store":
            dataset = facts["dataset"] or UNKNOWN
            title = f"{facts['path']}: {facts['format']} store of {dataset}"
            return title, (
                properties(_store_rows(facts)),
                *statistics_told(facts["statistics"]),
                *quality_told(facts["lossy"], facts["n_samples"]),
            )
        case _:
            return facts["path"], tuple(map(_run_section, range(len(facts["runs"])), facts["runs"]))


def _dataset_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    yield "told from", facts["told_from"]
    yield from listed_values(
        "options",
        (
            f"--option {each['name']}=...  {each['values']}: {each['text']}"
            for each in facts["options"]
        ),
    )
    files = facts["files"]
    text = f"{count(files['n_files'])}, {nbytes(files['nbytes'])}: {shortened(files['names'])}"
    yield "files", text
    yield "samples", _samples(facts)
    yield from _along_rows(facts)
    is_along_several = len(facts["along"]) > 1
    yield "windows", ALONG_ONE if is_along_several else _windows(facts["windows"])
    yield from _sample_rows(facts["sample"])
    yield from _value_rows("normalisation", facts["normalisation"] or None)
    yield "pipelines", ", ".join(facts["pipelines"])
    if facts["fused"]:
        yield "fused", f"{'+'.join(facts['fused'])}: cannot be separated"
    yield from listed_values("published step", _published(facts["published"]))
    for name in ("terms_of_use", "citation"):
        yield name.replace("_", " "), facts[name] or UNKNOWN


def _samples(facts: Mapping[str, Any]) -> str:
    splits = ", ".join(f"{name} {count(n)}" for name, n in facts.get("splits", {}).items())
    coordinate = " to ".join(facts.get("coordinate", ()))
    return "; ".join(filter(None, (count(facts["n_samples"]), splits, coordinate)))


def _along_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the dimensions that samples are along, where they are known, with their lengths."""
    along = facts.get("along")
    if along:
        lengths = (f"{dim} ({UNKNOWN if n is None else count(n)})" for dim, n in along.items())
        yield "along", ", ".join(lengths)


def _coordinate_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    """Yield what a store knows of when and where its samples are, a line for each coordinate."""
    yield from listed_values("coordinates", map(_coordinate, facts.get("coordinates", ())))
    left_out = (f"{name}: {why}" for name, why in facts.get("left_out", {}).items())
    yield from listed_values("without", left_out)


def _coordinate(each: Mapping[str, Any]) -> str:
    ends = ""
    if "lowest" in each:
        values = list(dict.fromkeys(_short(each[end]) for end in ("lowest", "highest")))
        # Dates say more than what they are counted in.
        units = each["units"] if not isinstance(each["lowest"], str) else ""
        ends = f": {' to '.join(values)} {units}".rstrip()
    axes = f" ({', '.join(each['dims'])})" if each["dims"] not in ([], [each["name"]]) else ""
    return f"{each['name']}{axes}{ends}"


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _windows(windows: Mapping[str, Any] | None) -> str:
    if windows is None:
        return "none: samples do not follow each other along any dimension"
    if "refused" in windows:
        return f"none: {windows['refused']}"
    rows = "one row" if windows["n_rows"] == 1 else f"{count(windows['n_rows'])} rows"
    units = f", {windows['position_units']}" if windows["position_units"] else ""
    return f"--window makes windows over {rows}{units}"


def _published(published: Mapping[str, Any] | None) -> Iterator[str]:
    if published is None:
        yield "none"
        return
    forward, backward = published["forward_ns"], published["backward_ns"]
    yield (
        f"{duration(forward + backward)} for a batch of {published['batch_size']} "
        f"(forward {duration(forward)}, backward {duration(backward)})"
    )
    yield published["source"]


def _file_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    lengths = ", ".join(f"{dim} {count(length)}" for dim, length in facts["dims"].items())
    yield "dimensions", lengths or "none"
    yield from listed_values("variables", map(_file_variable, facts["variables"]))
    for name in ("coordinates", "skipped"):
        if facts[name]:
            yield name, said_in_words(facts[name])
    candidates = ", ".join(f"{dim} ({count(facts['dims'][dim])})" for dim in facts["sample_dims"])
    several = (
        ("; separate several with commas for every combination")
        if len(facts["sample_dims"]) > 1
        else ""
    )
    yield "--sample-dim", f"{candidates}{several}" or "none: no dimension has two"


def _file_variable(variable: Mapping[str, Any]) -> str:
    chunk = f", chunks {' x '.join(map(str, variable['chunk']))}" if variable["chunk"] else ""
    return f"{_array(variable)}{chunk}; {variable['codec']}"


def _array(variable: Mapping[str, Any]) -> str:
    lengths = zip(variable["dims"], variable["shape"], strict=True)
    axes = ", ".join(f"{dim} {length}" for dim, length in lengths)
    units = variable["units"] or "units unknown"
    return f"{variable['name']} ({axes}) {variable['dtype']}, {units}"


def _store_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    yield "format", f"{facts['format']}, layout version {facts['format_version']}"
    yield "codec", facts["codec"] or "none"
    yield "samples", _samples(facts)
    yield from _along_rows(facts)
    yield from _coordinate_rows(facts)
    yield "size", Quantity(facts["nbytes"], "B")
    shards = [
        f"{shortened(each['files'])}: {count(each['n_samples'])} samples, {nbytes(each['nbytes'])}"
        for each in facts["shards"]
    ]
    more = [f"and {count(len(shards) - FEW)} more"] if len(shards) > FEW else []
    yield from listed_values("shards", [*shards[:FEW], *more])
    yield from _sample_rows(facts["sample"])
    yield from _value_rows("normalisation", facts["normalisation"] or None)
    if facts["options"]:
        yield "options", ", ".join(f"{name}={value}" for name, value in facts["options"].items())
    yield from _value_rows("source", _without_fingerprints(facts["provenance"]))


def _without_fingerprints(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return where samples are from for people, who compare no digests: these are in JSON."""
    text = {name: value for name, value in provenance.items() if name != "fingerprints"}
    files = text.get("files")
    if isinstance(files, list) and all(isinstance(each, Mapping) for each in files):
        text["files"] = [each.get("name", "") for each in files]
    return text


def _sample_rows(sample: Mapping[str, Any]) -> Iterator[Row]:
    yield "sample", Quantity(sample["nbytes"], "B")
    for variable in sample["variables"]:
        yield "", f"{variable['role']} {_array(variable)}"
        if variable["channels"]:
            yield "", f"channels: {shortened(variable['channels'], FEW_CHANNELS)}"


def _run_section(number: int, run: Mapping[str, Any]) -> Section:
    commit = RunFacts.from_config({"commit": run.get("commit")}).commit
    text = {**run, "commit": commit_words(commit)} if commit else run
    rows = [
        row
        for name in sorted(text.keys() - {"format", "version"})
        for row in _value_rows(name.replace("_", " "), text[name])
    ]
    return Section(f"run-{number}", f"as {run.get('format', UNKNOWN)}", (properties(rows),))


def _value_rows(name: str, value: Any) -> Iterator[Row]:
    """Yield a value of JSON: an object with a row for each of its keys."""
    if isinstance(value, Mapping):
        texts = (f"{key}: {said_in_words(inner)}" for key, inner in value.items())
        yield from listed_values(name, texts)
    else:
        yield name, said_in_words(value)


def listed_values(name: str, texts: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each text, the first of which has the name."""
    for number, text in enumerate(texts):
        yield "" if number else name, text


def said_in_words(value: Any) -> str:
    """Return a value of JSON as a phrase, e.g. ``"size 3, packed yes"``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {said_in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return shortened([said_in_words(inner) for inner in value]) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def shortened(names: Sequence[str], few: int = FEW) -> str:
    """Return names with commas; of more than ``few`` the last one and how many there are."""
    if len(names) <= few:
        return ", ".join(names)
    return f"{', '.join(names[: few - 1])}, ... {names[-1]} ({len(names)} in all)"
