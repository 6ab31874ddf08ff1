"""Terms of use and citation of a dataset, told the first time its files are used here."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import StorageError
from iobench.files.atomic import write_atomically
from iobench.stores.places import user_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.sources.request import Screen

TERMS_NAME: Final = "terms-shown"


def terms_file() -> Path:
    """Return where it is remembered whose terms have been shown: in the user's cache."""
    return user_folder() / TERMS_NAME


def show_terms_once(
    dataset: str, provenance: Mapping[str, Any], screen: Screen, remember: Path
) -> bool:
    """Show terms of use and citation of a dataset unless that was done before, and remember it.

    Where nothing can be remembered they are shown each time. Other terms of the same dataset are
    shown again.
    """
    texts = {
        "terms of use": " ".join(str(provenance.get("terms_of_use") or "").split()),
        "cite": " ".join(str(provenance.get("citation") or "").split()),
    }
    # A dash is upstream's way to say that there is none.
    terms = "; ".join(f"{what}: {text}" for what, text in texts.items() if text not in ("", "-"))
    if not terms:
        return False
    line = f"{dataset} {hashlib.blake2b(terms.encode(), digest_size=16).hexdigest()}"
    shown: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        shown = remember.read_text().splitlines()
    if line in shown:
        return False
    screen.note(f"{dataset}: {terms} (shown once)")
    with suppress(OSError, StorageError):
        remember.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(remember, "".join(f"{each}\n" for each in [*shown, line]))
    return True
