"""The cache core: block pool, free queue, index, groups and the manager that joins them.

The engine's decisions, block for block; no clock, no event loop, no files.
May come in: policies and the ground (errors, units, jit).
"""
