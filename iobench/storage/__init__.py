"""What the storage really did: bytes this process moved, what the page cache held, file systems."""
