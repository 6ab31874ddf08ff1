"""Which samples a run delivered, in which order, by their digests."""
