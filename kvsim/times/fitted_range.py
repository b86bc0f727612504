"""Where a run leaves what constants of a user's own were fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.times.constants import Constants, catalog_constants, fingerprint

_NAMES = {
    "sequences": "requests at once",
    "context_tokens": "tokens of context",
    "step_tokens": "tokens a step",
}
_SET_UP = ("model", "GPU", "engine", "TP")


def range_warnings(
    constants: Constants, name: str, set_up: Sequence[str], reached: Mapping[str, float]
) -> list[str]:
    """Sentences about a run with constants that ``kvsim calibrate`` wrote.

    Args:
        constants: those of the run; without a ``range`` in their fit there is nothing to say.
        name: of the file they are from.
        set_up: of the run: model, GPU, engine and TP, as in the name of a set-up.
        reached: ``sequences``, ``context_tokens`` and ``step_tokens``: the most that the run held.
    """
    fit: Mapping[str, Any] = constants.fit
    fitted = fit.get("range")
    if not isinstance(fitted, Mapping):
        return []
    said = [
        f"{number:,.0f} {_NAMES[key]} (fitted to {fitted[key]:,})"
        for key, number in reached.items()
        if key in fitted and number > fitted[key]
    ]
    warnings = []
    if said:
        warnings.append(
            f"Step times leave the range that {name} was fitted to: up to {', '.join(said)}. "
            "Measure there, and calibrate again."
        )
    names = [key.split("|") for key in fit.get("set_ups", {})]
    measured = [(*parts[:3], parts[4]) for parts in names if len(parts) > 4]
    if measured and tuple(set_up) not in measured:
        near = max(
            measured, key=lambda other: sum(a == b for a, b in zip(other, set_up, strict=True))
        )
        others = [
            f"{what} {own} (fitted to {other})"
            for what, own, other in zip(_SET_UP, set_up, near, strict=True)
            if own != other
        ]
        warnings.append(
            f"Step times: {name} was fitted to other set-ups than this one: {', '.join(others)}."
        )
    beside = fit.get("catalog")
    if beside is not None and beside != fingerprint(catalog_constants()):
        warnings.append(
            f"Step times: {name} was fitted beside other constants of the catalog than these. "
            "Calibrate again with this version."
        )
    return warnings
