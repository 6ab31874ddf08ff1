"""What operations of opaque loaders are held to have cost: an estimate from their sums."""
