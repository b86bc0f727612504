"""The engine over time: scheduler, step times, replicas; the only place that knows SimPy."""
