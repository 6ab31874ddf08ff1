"""Datasets that are Python objects: by name (``package.module:callable``), or handed over."""
