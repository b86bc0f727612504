"""What is kept of a run: a row a request, a row a moment, and the figures made from them.

Counts and quantiles; nothing is simulated and nothing is written here.
May come in: the scenario's objective and the ground.
"""
