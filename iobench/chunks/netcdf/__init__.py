"""NetCDF files: where the bytes of a slab are, their decoding, samples of users' own files."""
