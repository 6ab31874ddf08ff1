"""Users' own layouts of a named dataset: a pattern of paths or URLs with dates (``--files``)."""

from __future__ import annotations

import glob
import re
from functools import cached_property
from pathlib import Path

import msgspec

from iobench.errors import MissingFileError, OptionError
from iobench.files.urls import URL, as_path, glob_expression

PLACEHOLDERS = {"year": 4, "month": 2, "day": 2}
"""Names in braces, and how many digits they stand for."""
DATE = re.compile(r"(?<!\d)(?P<year>\d{4})-?(?P<month>\d{2})(?:-?(?P<day>\d{2}))?")
"""A date as published files have it in their names: 20180101, 2018-01-01, 2018-01."""


class DatedFile(msgspec.Struct, frozen=True):
    """A file that matches a pattern; ``year``, ``month`` and ``day`` are digits, "" if unknown."""

    path: Path
    year: str = ""
    month: str = ""
    day: str = ""

    def is_of(self, date: re.Match[str] | None) -> bool:
        """Return whether all that is known of its date is that of another."""
        known = {name: getattr(self, name) for name in PLACEHOLDERS if getattr(self, name)}
        return bool(known and date) and all(
            (date[name] or "") == digits for name, digits in known.items() if date
        )


class FilePattern:
    """A glob in which ``{year}``, ``{month}`` and ``{day}`` stand for the digits of a date."""

    def __init__(self, text: str) -> None:
        named = as_path(text)
        self.url = named if isinstance(named, URL) else None
        self.text = text if self.url is None else str(self.url)
        unknown = set(re.findall(r"\{(.*?)\}", text)) - set(PLACEHOLDERS)
        if unknown or not text:
            problem = f"{{{min(unknown)}}} is not known" if unknown else "is empty"
            raise OptionError(
                f"--files {self.text!r}: {problem}; expected {{year}}, {{month}}, {{day}}"
            )
        self._path = str(named.expanduser()) if self.url is None else self.url.path
        if self.url is not None and not self.url.can_list:
            raise OptionError(
                f"--files {self.text}: a web server lists no files; name the folder with "
                "--data-dir, under whose names files are published, or a bucket (s3://...)"
            )

    @property
    def folder(self) -> Path:
        """The folder above everything that matches."""
        fixed = re.split(r"[*?\[{]", self._path, maxsplit=1)[0]
        if fixed != self._path:
            fixed = fixed[: fixed.rfind("/") + 1]
        return Path(fixed) if self.url is None else self.url.with_path(fixed)

    @cached_property
    def files(self) -> tuple[DatedFile, ...]:
        """The files that match, by name."""
        exact = re.compile(_regular_expression(self._path))
        folder = self.folder
        if isinstance(folder, URL):
            urls = {url.path: url for url in folder.rglob("*")}
            paths: dict[str, Path] = {
                path: url for path, url in urls.items() if not url.name.startswith(".")
            }
        else:
            wide = self._path
            for name, digits in PLACEHOLDERS.items():
                wide = wide.replace(f"{{{name}}}", "[0-9]" * digits)
            # Unlike pathlib's, this leaves hidden files out, such as iobench's own beside the data.
            matching = glob.glob(wide, recursive=True)  # noqa: PTH207
            paths = {path: Path(path) for path in matching if Path(path).is_file()}
        pairs = [(path, exact.fullmatch(text)) for text, path in sorted(paths.items())]
        files = [DatedFile(path, **match.groupdict()) for path, match in pairs if match]
        if not files:
            from_folder = "" if self.url is not None else f", seen from {Path.cwd()}"
            raise MissingFileError(
                f"--files {self.text}: no file matches{from_folder}; quote it, so that the shell "
                "leaves it alone, and check the spelling"
            )
        return tuple(files)

    def find(self, url: str) -> Path | None:
        """Return the file that stands for a published one: of its name, else of its date."""
        name = url.rpartition("/")[2]
        matching = [file.path for file in self.files if file.path.name == name]
        matching = matching or [file.path for file in self.files if file.is_of(DATE.search(name))]
        if len(matching) > 1:
            raise OptionError(
                f"--files {self.text}: {len(matching)} files stand for {name} ({matching[0]}, "
                f"{matching[1]}, ...); expected one: narrow the pattern"
            )
        return matching[0] if matching else None


def _regular_expression(pattern: str) -> str:
    """Return the regular expression of the paths a glob finds, with a group per placeholder."""
    parts = re.split(r"\{(\w+)\}", pattern)
    translated_parts = ""
    for text, name in zip(parts[::2], [*parts[1::2], ""], strict=True):
        translated_parts += glob_expression(text)
        if name:
            digits = rf"(?P<{name}>\d{{{PLACEHOLDERS[name]}}})"
            translated_parts += f"(?P={name})" if f"(?P<{name}>" in translated_parts else digits
    return translated_parts
