"""Adapters: what training code reads and decodes, timed from outside with no change to it.

An adapter puts a timed function in the place of a library's, which records nothing until a
recorder is active. It loads only if its library is imported, before or after `install`.
"""
