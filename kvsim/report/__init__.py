"""The page for a review: one HTML file from the results of runs.

Reads results and draws; never runs a simulation.
May come in: plots, studies, results and what lies below.
"""
