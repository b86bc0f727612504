"""A router of one's own: the shortest queue of prompt tokens, with some loyalty to sessions."""

from pydantic import Field

from kvsim.routing import Parameters, Router, Sees


class Loyalty(Parameters):
    grace_tokens: int = Field(default=2000, ge=0, description="longer queue a session puts up with")


class ShortestQueue(Router[Loyalty]):
    """Fewest prompt tokens on the way; a session stays unless its replica has many more."""

    Parameters, source = Loyalty, "mine"
    sees = Sees(own=True)  # told when its requests make their first token and finish

    def choose(self, request, views, now_s, rng):
        best = min(views.replicas, key=lambda replica: views.prefill_tokens[replica])
        home = self.__dict__.setdefault("homes", {}).get(request.session_id, best)
        longer = views.prefill_tokens[home] - views.prefill_tokens[best]
        stays = views.is_available(home) and longer <= self.parameters.grace_tokens
        if request.session_id:
            self.homes[request.session_id] = home if stays else best
        return home if stays else best
