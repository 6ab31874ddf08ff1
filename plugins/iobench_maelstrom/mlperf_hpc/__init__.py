"""DeepCAM and CosmoFlow, the data sets of MLPerf HPC; not MAELSTROM's, but what it is held to."""
