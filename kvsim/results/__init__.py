"""One run and what is kept of it: running a variant, its files, its origin, its reference.

A result directory appears whole or not at all. No plots, nothing about many runs.
May come in: the engine, metrics, the scenario and what lies below.
"""
