"""The ring: batches filled by threads into buffers that are used again, at the speed of memory."""
