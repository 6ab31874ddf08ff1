"""GRIB files: where their messages are, one message decoded, samples of users' own files."""
