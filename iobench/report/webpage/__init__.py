"""Reports as one page: a file that holds all it shows, opens offline, and runs no script but ours.

Figures are taken from the document of `to_json`, which the page carries, and turned
into words by `iobench.report.units`, so that both say the same.
"""
