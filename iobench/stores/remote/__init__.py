"""Stores that are objects elsewhere (``s3://bucket/prefix``); see `StoreAddress` and `staging`."""
