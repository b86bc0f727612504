"""Decisions the pool and the coordinator ask for: free-queue orders, retention, engine profiles."""
