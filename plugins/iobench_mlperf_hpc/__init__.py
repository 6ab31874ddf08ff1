"""DeepCAM and CosmoFlow, the data sets of MLPerf HPC."""
