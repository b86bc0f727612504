"""Tiers below the device: what is stored there, loaded from it, and evicted.

The engine's connectors, decision for decision; no clock: whoever calls says when things arrive.
May come in: the cache, policies and the ground.
"""
