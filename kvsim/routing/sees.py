"""What a router is shown of the replicas, and how late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, WithJsonSchema
from pydantic.functional_serializers import PlainSerializer

from kvsim.errors import show, unknown_name
from kvsim.units import parse_seconds


@dataclass(frozen=True, slots=True)
class Sees:
    """What is shown to a router besides its own requests' way out.

    Attributes:
        own: it is told when its own requests make their first token and finish.
        published: replicas publish their counts by themselves (`vllm-dp`: through the coordinator).
        scraped_every_s: it asks all replicas for their counts so often; None: never.
        events_after_s: replicas tell what their caches store and remove, which arrives so much
            later; None: they do not.
        caches: it sees every cache as it is now, which no real router does.
    """

    own: bool = False
    published: bool = False
    scraped_every_s: float | None = None
    events_after_s: float | None = None
    caches: bool = False

    @property
    def nothing(self) -> bool:
        """Whether its choices depend on arrivals alone, so that replicas can run apart."""
        return self == NOTHING


NOTHING = Sees()
"""Shown nothing but the requests that arrive."""

_WORDS = ("own", "published")
_KEYS = ("scraped", "events")


def parse_sees(value: object) -> Sees:
    """What is seen, from ``own``, ``published``, ``{scraped: 50 ms}`` or ``{events: 5 ms}``.

    The last two may stand together. Own counts are seen with any of them.

    Raises:
        ValueError: none of these, or a time that is none.
    """
    if isinstance(value, Sees):
        return value
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError(unknown_name("view", value, (*_WORDS, *_KEYS)))
        return Sees(own=True, published=value == "published")
    if not isinstance(value, Mapping) or not value:
        raise ValueError(
            f"{show(value)} is no view. "
            "Write own, published, {scraped: 50 ms} or {events: 5 ms}."
        )
    times: dict[str, float] = {}
    for key, written in value.items():
        if key not in _KEYS:
            raise ValueError(unknown_name("view", str(key), (*_WORDS, *_KEYS)))
        times[key] = seconds = parse_seconds(written)
        if seconds < 0 or (key == "scraped" and seconds == 0):
            raise ValueError(f"{key}: {show(written)} is not above 0. Write a time as in '50 ms'.")
    return Sees(own=True, scraped_every_s=times.get("scraped"), events_after_s=times.get("events"))


def sees_data(sees: Sees) -> Any:
    """What is seen, as it is written."""
    data: dict[str, float] = {}
    if sees.scraped_every_s is not None:
        data["scraped"] = sees.scraped_every_s
    if sees.events_after_s is not None:
        data["events"] = sees.events_after_s
    return data or ("published" if sees.published else "own")


def one_of(*forms: str) -> AfterValidator:
    """Only these forms of the four, where a router can do nothing with the others."""

    def check(sees: Sees) -> Sees:
        written = sees_data(sees)
        used = [written] if isinstance(written, str) else list(written)
        for form in used:
            if form not in forms:
                raise ValueError(f"{show(form)} is of no use here. Choices: {', '.join(forms)}.")
        return sees

    return AfterValidator(check)


SeesSetting = Annotated[
    Sees,
    PlainValidator(parse_sees),
    PlainSerializer(sees_data),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(_WORDS)},
                {
                    "type": "object",
                    "properties": {key: {"type": ["string", "number"]} for key in _KEYS},
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
