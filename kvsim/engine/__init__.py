"""The engine over time: scheduler, steps, replicas, transfers; the only room that knows SimPy.

Joins a scenario's parts into a simulation and plays it; makes records, no summary and no files.
May come in: offload, workload, metrics, the scenario, times, the cache and what lies below.
"""
