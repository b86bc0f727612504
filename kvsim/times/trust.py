"""Who answered how long steps take, and how far that was off for measured set-ups like this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvsim import catalog
from kvsim.catalog import Gpu, Model
from kvsim.errors import KvsimError
from kvsim.times.constants import Constants, catalog_constants

_ENOUGH = 3  # set-ups, so that one of them does not speak alone
_Row = tuple[tuple[str | None, ...], float | None, float | None]


@dataclass(frozen=True)
class Near:
    """How far one kind of time was off for measured set-ups near one.

    Attributes:
        error: median over them of the median of |predicted / measured - 1|, each predicted with
            constants that were fitted to others.
        set_ups: how many they are.
        near: what they have in common with the one that ran.
    """

    error: float
    set_ups: int
    near: str


@dataclass(frozen=True)
class Trust:
    """What a run says of its step times.

    Attributes:
        provider: ``roofline``, ``constant`` or ``table``.
        ttft: of the time to the first token; None where no set-up near it was measured.
        tpot: of the time per token after it; likewise.
    """

    provider: str
    ttft: Near | None = None
    tpot: Near | None = None

    @property
    def sentence(self) -> str:
        """For people, on one line."""
        told = {
            "constant": "a constant that was given",
            "table": "a table of measured steps",
            "roofline": "roofline",
        }[self.provider]
        known = {name: near for name, near in (("TTFT", self.ttft), ("TPOT", self.tpot)) if near}
        if not known:
            return f"Step times: {told}; no measured set-up was held against this one."
        parts = [
            f"{name} within {near.error:.0%} in {near.set_ups} "
            f"set-up{'s' * (near.set_ups > 1)} near this one ({near.near})"
            for name, near in known.items()
        ]
        return f"Step times: {told}; {', '.join(parts)}: medians, without a fit to them."

    def as_json(self) -> dict[str, Any]:
        """For ``summary.json``."""
        return {
            "provider": self.provider,
            "ttft": None if self.ttft is None else asdict(self.ttft),
            "tpot": None if self.tpot is None else asdict(self.tpot),
            "says": self.sentence,
        }


def trust_in_roofline(
    model: Model, gpu: Gpu, engine: str, constants: Constants | None = None
) -> Trust:
    """How far the roofline was off for measured set-ups near one.

    Args:
        model: what is served.
        gpu: on what.
        engine: by which engine.
        constants: None for those of the catalog.
    """
    measured: Mapping[str, Any] = (constants or catalog_constants()).fit.get("set_ups", {})
    enough = _ENOUGH if constants is None else 1  # one's own node speaks for itself
    own = (model.name, gpu.name, gpu.generation, _kind(model), engine)
    rows: list[_Row] = []
    for name, (_, ttft, tpot) in measured.items():
        its_model, its_gpu, its_engine = name.split("|")[:3]
        rows.append(((its_model, its_gpu, *_told(its_model, its_gpu), its_engine), ttft, tpot))
    return Trust("roofline", _near(rows, own, 0, enough), _near(rows, own, 1, enough))


_LEVELS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("same model, GPU and engine", (0, 1, 4)),
    ("same model, generation and engine", (0, 2, 4)),
    ("same kind of model, generation and engine", (3, 2, 4)),
    ("same kind of model and engine", (3, 4)),
    # A model whose layers do more is off alike under every engine: that tells more than how well
    # other models do under this one.
    ("same model, other engines", (0,)),
    ("same kind of model, other engines", (3,)),
    ("same generation and engine", (2, 4)),
    ("same engine", (4,)),
)
"""What measured set-ups have in common with one, the nearest first: indices of what is compared."""


def _near(rows: Sequence[_Row], own: tuple[str | None, ...], of: int, enough: int) -> Near | None:
    """The nearest set-ups of which enough were measured; ``of``: which of the errors."""
    for near, keys in _LEVELS:
        alike = [row for row in rows if all(row[0][key] == own[key] for key in keys)]
        found = [error for _, *errors in alike if (error := errors[of]) is not None]
        if len(found) >= enough:
            return Near(float(np.median(found)), len(found), near)
    return None


def _kind(model: Model) -> str:
    return model.family or ("experts" if model.num_experts else "dense")


def _told(model: str, gpu: str) -> tuple[str | None, str]:
    """Generation and kind of what a measured set-up names."""
    try:
        return catalog.gpu(gpu).generation, _kind(catalog.model(model))
    except KvsimError:
        return None, ""
