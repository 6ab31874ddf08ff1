"""What share of the time accelerators computed, by the formula of MLPerf Storage."""
