"""Work of threads beside those that make batches, for no batch that is known."""
