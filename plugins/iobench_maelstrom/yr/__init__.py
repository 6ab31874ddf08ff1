"""Application A1, yr: post-processed temperature over the Nordic countries."""
