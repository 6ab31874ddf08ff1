"""The MAELSTROM applications as datasets: one module per application, helpers beside it."""
