"""From what a command names to files that exist and samples that can be made."""
