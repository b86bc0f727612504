"""Who answered how long steps take, and how far that was off for measured set-ups like this one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim import catalog
from kvsim.catalog import Gpu, Model
from kvsim.errors import KvsimError
from kvsim.times.constants import Constants, catalog_constants

_ENOUGH = 3  # set-ups, so that one of them does not speak alone


@dataclass(frozen=True)
class Trust:
    """What a run says of its step times.

    Attributes:
        provider: ``roofline``, ``constant`` or ``table``.
        set_ups: measured set-ups near the one that ran; 0 where none was held against it.
        near: what these have in common with it.
        ttft_error: median over them of the median of |predicted / measured - 1|, each predicted
            with constants that were fitted to others; None without.
        tpot_error: the same of the time per token after the first.
    """

    provider: str
    set_ups: int = 0
    near: str = ""
    ttft_error: float | None = None
    tpot_error: float | None = None

    @property
    def sentence(self) -> str:
        """For people, on one line."""
        if self.provider != "roofline" or self.set_ups == 0:
            told = {
                "constant": "a constant that was given",
                "table": "a table of measured steps",
                "roofline": "the roofline",
            }[self.provider]
            return f"Step times: {told}; no measured set-up was held against this one."
        within = [
            f"{name} within {error:.0%}"
            for name, error in (("TTFT", self.ttft_error), ("TPOT", self.tpot_error))
            if error is not None
        ]
        return (
            f"Step times: roofline; {', '.join(within)} in the median of {self.set_ups} measured "
            f"set-up{'s' * (self.set_ups > 1)} near this one ({self.near}), not fitted to them."
        )

    def as_json(self) -> dict[str, Any]:
        """For ``summary.json``."""
        return {
            "provider": self.provider,
            "set_ups": self.set_ups,
            "near": self.near,
            "ttft_error": self.ttft_error,
            "tpot_error": self.tpot_error,
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
    own = (model.name, gpu.name, gpu.generation, _kind(model))
    rows = []
    for name, (_, ttft, tpot) in measured.items():
        its_model, its_gpu, its_engine = name.split("|")[:3]
        if its_engine == engine:
            rows.append(((its_model, its_gpu, *_told(its_model, its_gpu)), ttft, tpot))
    levels: tuple[tuple[str, Collection[int]], ...] = (
        ("same model and GPU", (0, 1)),
        ("same model and generation of GPU", (0, 2)),
        ("same kind of model and generation of GPU", (3, 2)),
        ("same model", (0,)),
        ("same kind of model", (3,)),
        ("same engine", ()),
    )
    for near, keys in levels:
        alike = [row for row in rows if all(row[0][key] == own[key] for key in keys)]
        if len(alike) >= enough:
            return Trust(
                "roofline",
                len(alike),
                f"{engine}, {near}" if keys else near,
                _median(row[1] for row in alike),
                _median(row[2] for row in alike),
            )
    return Trust("roofline")


def _kind(model: Model) -> str:
    return model.family or ("experts" if model.num_experts else "dense")


def _told(model: str, gpu: str) -> tuple[str | None, str]:
    """Generation and kind of what a measured set-up names."""
    try:
        return catalog.gpu(gpu).generation, _kind(catalog.model(model))
    except KvsimError:
        return None, ""


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
