"""Seconds for a step of the engine.

From what a step computes and reads to a time, in compiled code; no clock, no scheduler.
May come in: the catalog and the ground.
"""
