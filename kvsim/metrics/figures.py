"""The figures of a run by name: a summary laid flat, and those of a part of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from kvsim.scenario import Objective

FOUND_RATE = "found_rate"
"""Share of prompt tokens found on the device or in a tier; without a tier, the token hit rate."""

Columns = dict[str, "npt.NDArray[np.float64]"]
"""Numbers of requests by name, a row a request."""


def flat_figures(summary: Mapping[str, Any]) -> dict[str, float | int | None]:
    """The numbers of a summary by dotted name, as in ``ttft_s.p99``; sentences are left out.

    An entry of a list goes by its number, counted from 0.
    """
    flat: dict[str, float | int | None] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(inner, f"{place}.{key}" if place else str(key))
        elif isinstance(value, list | tuple):
            for number, inner in enumerate(value):
                walk(inner, f"{place}.{number}")
        elif value is None or isinstance(value, int | float):
            flat[place] = value

    walk({key: value for key, value in summary.items() if key != "warnings"}, "")
    return flat


def within_objective(requests: pd.DataFrame, objective: Objective) -> pd.Series[bool]:
    """Which requests count as goodput: finished, and within every limit of the objective."""
    within = requests["refused"].isna() & requests["end_s"].notna()
    if objective.ttft_s is not None:
        within &= requests["ttft_s"] <= objective.ttft_s
    if objective.tpot_s is not None:
        # One output token has no time a token, so there is nothing to miss.
        within &= requests["tpot_s"].isna() | (requests["tpot_s"] <= objective.tpot_s)
    return within


def columns_of(requests: pd.DataFrame, objective: Objective | None = None) -> Columns:
    """The numbers of requests that figures are made of, NaN where one does not exist."""
    names = ("prompt_tokens", "hit_tokens", "ttft_s", "tpot_s", "queue_s")
    columns = {name: requests[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in names}
    loaded = requests["external_hit_tokens"].to_numpy(dtype=np.float64, na_value=np.nan)
    columns["external_hit_tokens"] = np.nan_to_num(loaded)
    if objective is not None:
        columns["within"] = within_objective(requests, objective).to_numpy(dtype=np.float64)
    return columns


def column_figures(columns: Columns) -> dict[str, float]:
    """Rates and times of requests, named as `flat_figures` names those of a whole run.

    Args:
        columns: of `columns_of`, whole or some rows of each; times may be left out.

    Returns:
        `token_hit_rate`, `found_rate`, `request_hit_rate`, mean and quantiles of `ttft_s`, `tpot_s`
        and `queue_s`, and `goodput` where there is an objective; NaN where one does not exist.
    """
    nan = float("nan")
    hit_tokens = columns["hit_tokens"]
    looked_up = ~np.isnan(hit_tokens)
    num_tokens = columns["prompt_tokens"][looked_up].sum()
    found_tokens = (hit_tokens + columns["external_hit_tokens"])[looked_up].sum()
    figures = {
        "token_hit_rate": hit_tokens[looked_up].sum() / num_tokens if num_tokens else nan,
        FOUND_RATE: found_tokens / num_tokens if num_tokens else nan,
        "request_hit_rate": (hit_tokens[looked_up] > 0).mean() if num_tokens else nan,
    }
    for name in ("ttft_s", "tpot_s", "queue_s"):
        if name not in columns:
            continue
        known = columns[name][~np.isnan(columns[name])]
        values = [nan] * 4
        if known.size:
            values = [known.mean(), *np.quantile(known, (0.5, 0.9, 0.99))]
        figures |= {
            f"{name}.{key}": float(value)
            for key, value in zip(("mean", "p50", "p90", "p99"), values, strict=True)
        }
    if "within" in columns:
        figures["goodput"] = columns["within"].mean() if columns["within"].size else nan
    return {name: float(value) for name, value in figures.items()}
