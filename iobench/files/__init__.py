"""Where bytes lie, on this machine and behind URLs: see the map in `iobench/README.md`."""
