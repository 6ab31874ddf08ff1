"""A script's own figures, such as its loss."""
