"""Loaders: pipelines of a dataset or store run ahead of a training loop, every stage recorded."""
