"""Decisions the pool and the coordinator ask for: free-queue orders, retention, host eviction.

One small file each, and the profiles that say which of them a release uses.
May come in: the ground alone.
"""
