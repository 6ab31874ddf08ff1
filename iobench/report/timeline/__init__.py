"""A run over time: one model of its lanes, and the page, trace, picture and table made of it."""
