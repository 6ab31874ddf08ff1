"""Zarr stores, versions 2 and 3: metadata, chunks, codecs, samples of users' own stores."""
