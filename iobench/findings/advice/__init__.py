"""What would help a run, by how much, and at what price."""
