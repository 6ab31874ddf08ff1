"""What ``iobench convert`` and ``iobench verify`` do, without the command line."""
