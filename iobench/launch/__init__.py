"""``iobench run``: any script, not edited, and all the Python processes it starts.

Nothing is imported here: `hooks` loads in every process of the user's.
"""
