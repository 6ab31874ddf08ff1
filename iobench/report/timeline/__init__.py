"""A run over time: one model of its lanes, and the page, trace and table made of it."""
