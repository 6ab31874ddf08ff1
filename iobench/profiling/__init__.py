"""What ``iobench profile`` does, without the command line."""
