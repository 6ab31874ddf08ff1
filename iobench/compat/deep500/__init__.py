"""The timers of Deep500 for MAELSTROM, with a timeline: change the import, nothing else.

::

    from iobench.compat.deep500 import timer_torch as timer   # or timer_tf, or timer

Everything a script calls answers as before: the same keys, rules, errors and texts. While a
recording goes on (``iobench run``, ``iobench.record()``, ``$IOBENCH_RUN``) each region is a span
as well: ``FORWARD``, ``BACKWARD`` and ``COMM`` are those kinds; ``EPOCH`` and ``BATCH``, which hold
the others, are on the timeline and in no sum; ``OTHER`` and keys of the user's own are labels.
``IO`` is what the training loop waits for its input. Where it asks a loader that iobench sees, that
loader's own waits, which lie inside, count alone. Else the region itself is the wait for a batch,
and a pass over the data lasts from the first one to the end of ``EPOCH``.
"""
