"""Many runs: sweeps, searches, comparison, findings, reuse, benchmarks, on cores, Ray or Dask.

Runs variants, keeps and joins their results; draws nothing and prints nothing.
May come in: results, the engine, workloads and what lies below.
"""
