"""Free-queue orders, a file each; `kvsim.policies.table` has them by name."""
