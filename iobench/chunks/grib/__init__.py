"""GRIB files: where their messages are, the fields these make up, one message decoded."""
