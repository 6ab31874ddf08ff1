"""Users' own layouts of a named dataset: a pattern of paths with dates in them (``--files``)."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from iobench.errors import MissingFileError, OptionError

__all__ = ["DatedFile", "FilePattern"]

PLACEHOLDERS = {"year": 4, "month": 2, "day": 2}
"""Names in braces, and how many digits they stand for."""
DATE = re.compile(r"(?<!\d)(?P<year>\d{4})-?(?P<month>\d{2})(?:-?(?P<day>\d{2}))?")
"""A date as published files have it in their names: 20180101, 2018-01-01, 2018-01."""


@dataclass(frozen=True, slots=True)
class DatedFile:
    """A file that matches a pattern; ``year``, ``month`` and ``day`` are digits, "" if not told."""

    path: Path
    year: str = ""
    month: str = ""
    day: str = ""


class FilePattern:
    """A glob in which ``{year}``, ``{month}`` and ``{day}`` stand for the digits of a date.

    Parameters
    ----------
    text : str
        Such as ``ensemble/output.sfc.{year}{month}{day}.grib``; ``*``, ``?``, ``[...]`` and ``**``
        as in a shell, ``~`` for the home folder.

    Raises
    ------
    OptionError
        If it has another name in braces.
    """

    def __init__(self, text: str) -> None:
        unknown = set(re.findall(r"\{(.*?)\}", text)) - set(PLACEHOLDERS)
        if unknown or not text:
            told = f"{{{min(unknown)}}} is not known" if unknown else "is empty"
            raise OptionError(f"--files {text!r}: {told}; expected {{year}}, {{month}}, {{day}}")
        self.text = text
        self._path = str(Path(text).expanduser())

    @property
    def folder(self) -> Path:
        """The folder above everything that matches."""
        fixed = re.split(r"[*?\[{]", self._path, maxsplit=1)[0]
        return Path(fixed) if fixed == self._path else Path(fixed[: fixed.rfind("/") + 1])

    @cached_property
    def files(self) -> tuple[DatedFile, ...]:
        """The files that match, by name.

        Raises
        ------
        MissingFileError
            If there is none.
        """
        wide = self._path
        for name, digits in PLACEHOLDERS.items():
            wide = wide.replace(f"{{{name}}}", "[0-9]" * digits)
        exact = re.compile(_regular_expression(self._path))
        # Unlike pathlib's, this leaves hidden files out, such as iobench's own beside the data.
        matching = glob.glob(wide, recursive=True)  # noqa: PTH207
        paths = sorted(path for path in matching if Path(path).is_file())
        found = [(path, exact.fullmatch(path)) for path in paths]
        files = [DatedFile(Path(path), **match.groupdict()) for path, match in found if match]
        if not files:
            raise MissingFileError(
                f"--files {self.text}: no file matches, seen from {Path.cwd()}; quote it, so that "
                "the shell leaves it alone, and check the spelling"
            )
        return tuple(files)

    def find(self, url: str) -> Path | None:
        """Return the file that stands for a published one: of its name, else of its date.

        Raises
        ------
        OptionError
            If several do.
        """
        name = url.rpartition("/")[2]
        found = [file.path for file in self.files if file.path.name == name]
        date = DATE.search(name)
        if not found and date:
            parts = date.groupdict(default="")
            found = [file.path for file in self.files if _is_of_date(file, parts)]
        if len(found) > 1:
            raise OptionError(
                f"--files {self.text}: {len(found)} files stand for {name} ({found[0]}, "
                f"{found[1]}, ...); expected one: narrow the pattern"
            )
        return found[0] if found else None


def _is_of_date(file: DatedFile, parts: dict[str, str]) -> bool:
    told = {name: getattr(file, name) for name in PLACEHOLDERS if getattr(file, name)}
    return bool(told) and all(parts[name] == digits for name, digits in told.items())


def _regular_expression(pattern: str) -> str:
    """Return the regular expression of the paths a glob finds, with a group per placeholder."""
    seen: set[str] = set()

    def translated(match: re.Match[str]) -> str:
        part = match[0]
        if part[0] == "{":
            name = part[1:-1]
            again = name in seen
            seen.add(name)
            return f"(?P={name})" if again else rf"(?P<{name}>\d{{{PLACEHOLDERS[name]}}})"
        if part[0] == "[" and len(part) > 1:
            return part.replace("[!", "[^")
        simple = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        return simple.get(part) or re.escape(part)

    return re.sub(r"\{\w+\}|\[[^]]+\]|\*\*/|\*\*|\*|\?|.", translated, pattern, flags=re.DOTALL)
