"""Renderers: what makes text of a document, one for each format."""
