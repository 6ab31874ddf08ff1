"""What storage did beside what the loader did: bytes by who counted them, stages, reads."""
