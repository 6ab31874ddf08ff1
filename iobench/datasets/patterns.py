"""Users' own layouts of a named dataset: a pattern of paths or URLs with dates (``--files``)."""

from __future__ import annotations

import glob
import re
from functools import cached_property
from pathlib import Path

from iobench.errors import MissingFileError, OptionError
from iobench.files.urls import URL, as_path, glob_expression

PLACEHOLDERS = {"year": 4, "month": 2, "day": 2}
"""Names in braces, and how many digits they stand for."""
DATE = re.compile(r"(?<!\d)(?P<year>\d{4})-?(?P<month>\d{2})(?:-?(?P<day>\d{2}))?")
"""A date as published files have it in their names: 20180101, 2018-01-01, 2018-01."""


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

    @cached_property
    def files(self) -> dict[Path, dict[str, str]]:
        """The files that match, by name, with the digits of their dates that are known."""
        if self.url is None:
            wide = self._path
            for name, digits in PLACEHOLDERS.items():
                wide = wide.replace(f"{{{name}}}", "[0-9]" * digits)
            # Unlike pathlib's, this leaves hidden files out, such as iobench's own beside the data.
            matching = glob.glob(wide, recursive=True)  # noqa: PTH207
            paths = {path: Path(path) for path in matching if Path(path).is_file()}
        else:
            fixed = re.split(r"[*?\[{]", self._path, maxsplit=1)[0]
            urls = self.url.with_path(fixed[: fixed.rfind("/") + 1]).rglob("*")
            paths = {url.path: url for url in urls if not url.name.startswith(".")}
        expression = glob_expression(self._path)
        for name, digits in PLACEHOLDERS.items():
            spelled = re.escape(f"{{{name}}}")
            expression = expression.replace(spelled, rf"(?P<{name}>\d{{{digits}}})", 1)
            expression = expression.replace(spelled, f"(?P={name})")
        pairs = [(path, re.fullmatch(expression, text)) for text, path in sorted(paths.items())]
        files = {path: match.groupdict() for path, match in pairs if match}
        if not files:
            from_folder = "" if self.url is not None else f", seen from {Path.cwd()}"
            raise MissingFileError(
                f"--files {self.text}: no file matches{from_folder}; quote it, so that the shell "
                "leaves it alone, and check the spelling"
            )
        return files

    def find(self, url: str) -> Path | None:
        """Return the file that stands for a published one: of its name, else of its date."""
        name = url.rpartition("/")[2]
        date = DATE.search(name)
        matching = [path for path in self.files if path.name == name]
        matching = matching or [
            path
            for path, known in self.files.items()
            if known and date and all((date[key] or "") == own for key, own in known.items())
        ]
        if len(matching) > 1:
            raise OptionError(
                f"--files {self.text}: {len(matching)} files stand for {name} ({matching[0]}, "
                f"{matching[1]}, ...); expected one: narrow the pattern"
            )
        return matching[0] if matching else None
