"""Several replicas on one clock: nodes and their ranks, who sends requests where, what comes of it.

Replicas are the engine's; whoever decides sees copies with an age, kept here. From a scenario with
a fleet, or with data-parallel ranks, to what happened.
May come in: the engine and all below it, routing among that.
"""
