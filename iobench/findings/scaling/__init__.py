"""A run on more ranks: simulated from what was measured, with a storage that all share."""
