"""What ``iobench verify`` does, without the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iobench.conversion.convert_request import STAGE, ConvertRequest
from iobench.conversion.preparing import open_samples
from iobench.cpus import available_cpus
from iobench.datasets.sample_windows import samples_in_order
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, StoreError
from iobench.sources.request import SourceRequest
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_against, verify_store

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from iobench.samples import Sample
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store
    from iobench.stores.manifest import Manifest


class VerifyRequest(SourceRequest, frozen=True, kw_only=True):
    """Which store to check; the source, if named, as for a conversion.

    How the samples were made of it (sample dimension, variables, options) is told by
    the store; ``options`` given here go before. Those that hold a secret are to be given again.
    """

    targets: tuple[Any, ...] = ()
    store: Path = msgspec.field(default_factory=Path)  # its folder


def verify(request: VerifyRequest, screen: Screen) -> dict[str, Any]:
    """Check every checksum of a store, and every sample against the source if one is named.

    Return what was checked, JSON-ready; raise StoreError where it is not as it should be.
    """
    watch = stopwatch()
    store = open_store(request.store)
    try:
        with screen.progress(f"checking {store.path.name}", in_bytes=True) as move:
            nbytes = verify_store(store, workers=available_cpus(), progress=move)
        left = ["whether samples are as their source has them (--against SOURCE)"]
        if request.targets:
            _compare(store, request, screen)
            left = []
        manifest = store.manifest
        return {
            "path": str(store.path),
            "dataset": manifest.dataset,
            "format": manifest.format,
            "n_samples": len(store),
            "n_shards": len(manifest.shards),
            "n_files": len(manifest.files),
            "nbytes": nbytes,
            "against": " ".join(map(str, request.targets)) or None,
            "n_compared": 0 if left else len(store),
            "wall_s": watch(),
            "not_covered": left,
        }
    finally:
        store.close()


def _compare(store: Store, request: VerifyRequest, screen: Screen) -> None:
    """Raise StoreError where a sample is another now."""
    again = conversion_of(store.manifest, request)
    source = open_samples(again, screen)
    dataset, index = source.dataset, source.index

    def make(numbers: Sequence[int]) -> Generator[Sample, None, None]:
        return samples_in_order(dataset, index, numbers, workers=again.n_workers)

    with screen.progress(f"comparing with {dataset.name}") as move:
        verify_against(store, index, make, progress=move)


def conversion_of(manifest: Manifest, request: VerifyRequest) -> ConvertRequest:
    """Return the request that a store was made by, of the source named now.

    Stores that profiles made as probes tell less; what a dataset needs is then given by options.
    """
    said = manifest.provenance.get("request", {})
    try:
        if (stage := said.get("stage", STAGE)) != STAGE:
            raise ValueError(f"holds {stage} samples, expected {STAGE} ones")
        missing = [n for n in map(str, said.get("masked", ())) if n not in request.options]
        options = {str(name): str(value) for name, value in said.get("options", {}).items()}
        result = ConvertRequest(
            targets=request.targets,
            to=manifest.format,
            out=request.store,
            options={**options, **request.options},
            sample_dim=said.get("sample_dim", manifest.provenance.get("sample_dim")),
            variables=tuple(map(str, said.get("variables", ()))),
            target_variables=tuple(map(str, said.get("target_variables", ()))),
            tiny=request.tiny or bool(said.get("tiny", False)),
            data_dir=request.data_dir,
            store_dir=request.store_dir,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"{request.store}: its manifest does not say how ({error}); convert to a new folder"
        ) from error
    if missing:
        again = " ".join(f"--option {name}=..." for name in missing)
        raise OptionError(
            f"{request.store}: its manifest does not hold the secret in {', '.join(missing)}; "
            f"give {again} again, as for the conversion"
        )
    return result
