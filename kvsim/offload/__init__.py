"""Tiers below the device: what is stored there, loaded from it, and evicted."""
