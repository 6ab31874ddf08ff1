"""A store opened by a script: one that also makes batches of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.files.atomic import is_local
from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.loader import RingLoader
    from iobench.loaders.ring.stacking import StackReader


class OpenedStore(ExtentStore):
    """What `iobench.open_store` returns: its samples side by side, and in a loader."""

    _stacks: StackReader | None = None

    @classmethod
    def of(cls, store: ExtentStore) -> OpenedStore:
        """Return the same store, as opened by a script."""
        made = cls(store.path, store.manifest, table=store.table, decode=store.decoder)
        made.codec = store.codec
        return made

    def __getitems__(self, indices: Sequence[int]) -> Sequence[dict[str, NDArray[Any]]]:
        if not is_local(self.path):
            return super().__getitems__(indices)
        from iobench.loaders.ring.stacking import StackReader

        if self._stacks is None:
            self._stacks = StackReader.of_store(self)
        return self._stacks.read(indices)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stacks": None}  # it refers back to the store

    def loader(self, batch_size: int, **options: Any) -> RingLoader:
        """Return ``iobench.loader(self, batch_size, ...)``."""
        from iobench.loaders.ring.options import loader

        return loader(self, batch_size, **options)

    def close(self) -> None:
        """Close the files; the store reopens them when used again."""
        super().close()
        self._stacks = None
