"""Paths and addresses taken apart: what of them tells who and where, and what may stay."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from iobench.bundling.pseudonyms import Pseudonyms
    from iobench.bundling.whoami import Whoami

SUFFIXES: Final = {
    "bin", "bufr", "bz2", "cfg", "ckpt", "csv", "dat", "darshan", "gif", "grb", "grb1",
    "grb2", "grib", "grib1", "grib2", "gz", "h5", "hdf", "hdf5", "html", "idx", "index",
    "ini", "ipynb", "jpeg", "jpg", "json", "jsonl", "log", "lz4", "md", "nc", "nc4", "npy",
    "npz", "onnx", "out", "parquet", "part", "pdf", "pfw", "pickle", "pkl", "png", "pt",
    "pth", "py", "safetensors", "sh", "slurm", "spans", "svg", "sqlite", "tar", "tf",
    "tfrecord", "tfrecords", "tgz", "tif", "tiff", "toml", "txt", "whl", "xz", "yaml", "yml",
    "zarr", "zip", "zst",
}  # fmt: skip
# Folders of every machine, and what lies in a Zarr store.
EVERYWHERE: Final = {
    "bin", "cdrom", "dev", "etc", "home", "lib", "lib64", "local", "media", "mnt", "nfs",
    "opt", "proc", "run", "sbin", "scratch", "self", "shm", "srv", "sys", "tmp", "usr", "var",
    "work", "Users", "Volumes", "c", "zarr.json", ".zarray", ".zattrs", ".zgroup",
    ".zmetadata",
}  # fmt: skip
PUBLIC: Final = frozenset({"site-packages", "dist-packages"})
"""What lies below is installed libraries: what a help desk asks for, and everybody's."""
SYSTEM: Final = re.compile(r"/(?:usr|proc|sys|etc|lib|lib64|bin|sbin)/")
"""What belongs to the operating system, or to whoever runs the machine, to the last file."""
VERSIONED: Final = re.compile(r"(?:lib)?python\d*(?:[.\d]*)(?:\.(?:so|zip))?", re.IGNORECASE)
HOMES: Final = {"home", "Users"}
LONGEST_NUMBER: Final = 4
"""Digits of a year, a month or a chunk; numbers of users and jobs may have more."""
# A backslash may also stand for a byte that is no UTF-8, see `as_written`.
SEPARATORS: Final = re.compile(r"(/|\\(?!udc[89a-f][0-9a-f]))")
LOCAL: Final = {"localhost", "127.0.0.1", "0.0.0.0", "::1", "unknown", ""}
ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*://)([^/?#]*)([^?#]*)(.*)", re.DOTALL)


def as_written(text: str) -> str:
    """Return a text as files of UTF-8 have it: bytes that are none, as names may hold, escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_file_name(text: str) -> bool:
    """Tell whether a word is the name of a file: it ends as those of data and scripts do."""
    stem, dot, suffix = text.rpartition(".")
    return bool(stem and dot) and suffix.lower() in SUFFIXES


class PathScrubber:
    """Replaces the parts of paths, hosts and addresses, and keeps depth and suffixes.

    Parameters
    ----------
    who : Whoami
        Whose machine this is.
    """

    def __init__(self, names: Pseudonyms, who: Whoami) -> None:
        self.names = names
        self.who = who

    def path(self, text: str) -> str:
        """Return a path with the names in it replaced; a home directory is ``~``.

        What follows a file's name and a colon is a variable in it, whose name stays.
        """
        file, colon, variable = text.rpartition(":")
        if colon and is_file_name(file) and not SEPARATORS.search(variable):
            return f"{self.path(file)}:{self.names.replaced(variable)}"
        rest, start = text, ""
        for home in self.who.homes:
            if rest == home or rest.startswith((f"{home}/", f"{home}\\")):
                start, rest = "~", rest[len(home) :]
                break
        parts = SEPARATORS.split(rest)
        found, public = [], SYSTEM.match(text) is not None
        for place, part in enumerate(parts):
            if place % 2:
                found.append(part)
                continue
            if place >= 2 and parts[place - 2] in HOMES and part:
                self.names.give("user", part)
            found.append(self._public(part) if public else self.component(part))
            public = public or part in PUBLIC
        return start + "".join(found)

    def _public(self, name: str) -> str:
        """Return a part of a path that anybody may have, unless it is a user or a name as such."""
        if name in self.who.users or name in self.who.numbers:
            return self.names.give("user", name)
        return self.names.replaced(name)

    def component(self, name: str) -> str:
        """Return what stands for one part of a path."""
        if name in self.who.users or self.names.is_given(name):
            return self.names.give("user", name)
        if name in {"", ".", "..", "~"} or self.names.is_pseudonym(name):
            return name
        if self._is_everywhere(name):
            return name
        if re.fullmatch(r"[A-Za-z]:", name):  # a drive
            return name
        if name in self.names.keep:
            return self.names.give("p", name)
        stem, suffixes = name, ""
        while is_file_name(stem):
            stem, _, suffix = stem.rpartition(".")
            suffixes = f".{suffix}{suffixes}"
        return self.names.give("file" if suffixes else "p", stem) + suffixes

    def _is_everywhere(self, name: str) -> bool:
        if name in EVERYWHERE or name in PUBLIC or VERSIONED.fullmatch(name):
            return True
        return name.isdecimal() and len(name) <= LONGEST_NUMBER and name not in self.who.numbers

    def host(self, name: str) -> str:
        """Return what stands for a machine; its name without the domain stands for the same."""
        if name.strip("[]") in LOCAL:
            return name
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            pass
        else:
            return self.names.give("ip", name)
        pseudonym = self.names.give("host", name)
        short = name.partition(".")[0]
        if pseudonym != name and short != name:
            self.names.alias(short, pseudonym)
        return pseudonym

    def address(self, text: str) -> str:
        """Return a URL without credentials and query, its host and path replaced."""
        found = ADDRESS.fullmatch(text)
        if found is None:
            return self.path(text)
        scheme, authority, path, query = found.groups()
        login, at, place = authority.rpartition("@")
        user, colon, password = login.partition(":")
        if at:
            login = self.names.give("user", user) + colon + self.names.give("secret", password)
        host, port_colon, port = place.rpartition(":")
        if not port.isdecimal():
            host, port_colon, port = place, "", ""
        for pair in re.split(r"[?&;#]", query):
            value = pair.rpartition("=")[2]
            if len(value) > LONGEST_NUMBER and not value.isdecimal():
                self.names.give("secret", value)
        asked = query[:1] + self.names.give("secret", query[1:])
        return f"{scheme}{login}{at}{self.host(host)}{port_colon}{port}{self.path(path)}{asked}"
