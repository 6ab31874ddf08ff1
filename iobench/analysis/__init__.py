"""Profiles to figures: pure functions of recorded spans, numpy and the standard library only."""
