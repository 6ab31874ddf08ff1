"""``iobench run``: any script, not edited, and all the Python processes it starts.

`running` starts the command and waits for it; ``boot/`` is found first on the ``PYTHONPATH`` of
what it starts; `hooks` is what happens there after an import; `launched_processes` reads
which were there.
Nothing is imported here: `hooks` loads in every process of the user's.
"""
