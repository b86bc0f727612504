"""Memory arithmetic: bytes of a block, blocks of a pool, requests that fit.

From a model and GPUs of the catalog to numbers; knows no scenario.
May come in: the cache's specs, the catalog and the ground.
"""
