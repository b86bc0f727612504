"""Retention policies; `kvsim.policies.table` has them by name."""
