"""What storage can do: a bounded probe that only reads, its figures, and where they are kept."""
