"""Application A6: wind power production, and the weather it follows."""
