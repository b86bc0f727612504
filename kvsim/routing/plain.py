"""Routers that look at nothing: random and round robin."""

from __future__ import annotations

import random

from kvsim.routing.contract import RoutedRequest, Router
from kvsim.routing.parameters import Parameters
from kvsim.routing.views import Views


class Random(Router[Parameters]):
    """Any replica, each as likely as any other."""

    source = "the usual lower bound; Vidur, BLIS (inference-sim)"

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """Draw one."""
        return views.replicas[int(rng.random() * len(views.replicas))]


class RoundRobin(Router[Parameters]):
    """One replica after the other, in the order of their numbers."""

    source = "production-stack, src/vllm_router/routers/routing_logic.py; Vidur, BLIS"

    _turn = 0

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The next one by a counter that goes on when replicas come and go."""
        replica = views.replicas[self._turn % len(views.replicas)]
        self._turn += 1
        return replica
