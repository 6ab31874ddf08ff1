"""Stores in standard containers: one module per container, and the driver that fills them."""
