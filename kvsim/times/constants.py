"""Constants of the roofline: how much of the peaks is reached, and what is paid beside them.

They stand in ``catalog/step_times.yaml``, each with its reason, its prior and how far a fit may go
from it; factors say where an engine, a generation of GPUs, a precision or a family of models
differs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim import catalog
from kvsim.catalog import Gpu, Model
from kvsim.errors import KvsimError, unknown_name
from kvsim.times.work import Layout

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """One number that measurements were needed for.

    Attributes:
        name: as in the file.
        condition: of which set-ups it is a factor; "" for the constant itself.
        value: seconds, a part of a peak, or a factor.
        prior: what it was expected to be before anything was fitted.
        spread: how far a fit may go, as the standard deviation of its logarithm.
        reason: what it stands for.
    """

    name: str
    condition: str
    value: float
    prior: float
    spread: float
    reason: str


class Constants:
    """All constants; their values for a set-up.

    Attributes:
        entries: in the order of the file, factors after what they multiply.
        fit: what the file says of the fit: counts and errors.
    """

    def __init__(self, entries: Collection[Constant], fit: Mapping[str, Any]) -> None:
        """Keep entries as they are."""
        self.entries = tuple(entries)
        self.fit = fit

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the constants, without the factors."""
        return tuple(entry.name for entry in self.entries if not entry.condition)

    def with_values(self, values: Floats) -> Constants:
        """The same with other values, an entry each."""
        pairs = zip(self.entries, values, strict=True)
        return Constants(
            [
                Constant(e.name, e.condition, float(value), e.prior, e.spread, e.reason)
                for e, value in pairs
            ],
            self.fit,
        )

    def held_here(self, part: float = 1.0) -> Constants:
        """The same, to be fitted on from where they are: each value becomes its own prior.

        Args:
            part: of each spread that is left, so that few points move constants little.
        """
        return Constants(
            [
                Constant(e.name, e.condition, e.value, e.value, e.spread * part, e.reason)
                for e in self.entries
            ],
            self.fit,
        )

    def of(self, conditions: Collection[str]) -> dict[str, float]:
        """Values for a set-up that meets some conditions."""
        values: dict[str, float] = {}
        for entry in self.entries:
            if not entry.condition:
                values[entry.name] = entry.value
            elif entry.condition in conditions:
                values[entry.name] *= entry.value
        return values

    def matrix(self, conditions: Collection[Collection[str]]) -> dict[str, Floats]:
        """Which entries count for which set-ups.

        Returns:
            For each name float64 [set-ups, entries], 1 where an entry counts, so that the
            logarithm of a value is a row times the logarithms of all entries.
        """
        place = {name: [] for name in self.names}  # type: dict[str, list[int]]
        for number, entry in enumerate(self.entries):
            place[entry.name].append(number)
        counts: dict[str, Floats] = {}
        for name, numbers in place.items():
            counts[name] = np.zeros((len(conditions), len(self.entries)))
            for number in numbers:
                condition = self.entries[number].condition
                counts[name][:, number] = [not condition or condition in c for c in conditions]
        return counts


def read_constants(content: Mapping[str, Any]) -> Constants:
    """Constants of a file of the catalog, or of one that ``kvsim calibrate`` wrote."""
    entries = []
    for name, part in content["constants"].items():
        entries.append(_entry(name, "", part))
        entries += [_entry(name, key, factor) for key, factor in part.get("factors", {}).items()]
    return Constants(entries, content.get("fit", {}))


def fingerprint(constants: Constants) -> str:
    """Twelve digits that change with any value: what a calibration stood beside."""
    values = [(entry.name, entry.condition, f"{entry.value:.6g}") for entry in constants.entries]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def constants_of(path: Path) -> Constants:
    """Constants of a file; what it leaves out is as in the catalog.

    Raises:
        KvsimError: it cannot be read, or names what does not exist; says which.
    """
    content = catalog.step_times(path)
    own = {(e.name, e.condition): e for e in catalog_constants().entries}
    try:
        given = {(e.name, e.condition): e for e in read_constants(content).entries}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise KvsimError(
            f"{path}: constants: each needs a value above 0. Use a file that kvsim calibrate wrote."
        ) from None
    for name, condition in given:
        if (name, condition) not in own:
            names = catalog_constants().names if not condition else [c for n, c in own if n == name]
            text = unknown_name("constant" if not condition else "factor", condition or name, names)
            raise KvsimError(f"{path}: constants.{name}: {text}")
    for (name, condition), entry in given.items():
        if not (math.isfinite(entry.value) and entry.value > 0):
            place = f"{name}{f'.factors.{condition}' if condition else ''}.value"
            raise KvsimError(f"{path}: constants.{place}: {entry.value:g} is not above 0.")
    return Constants(list({**own, **given}.values()), content.get("fit", {}))


@cache
def catalog_constants() -> Constants:
    """Those of the catalog."""
    return read_constants(catalog.step_times())


def conditions(
    model: Model, gpu: Gpu, layout: Layout, engine: str, *, asynchronous: bool = True
) -> frozenset[str]:
    """What a set-up is, in the words of the file.

    Args:
        model: what is served.
        gpu: what it is served on.
        layout: how GPUs share it.
        engine: one of ``work.ENGINES``.
        asynchronous: the host plans beside the GPU.
    """
    met = {engine, gpu.generation or "", model.family or "plain", f"precision-{model.precision}"}
    if model.num_experts:
        met.add("experts")
        rate = model.expert_precision or model.precision
        met.add(f"experts-{rate if gpu.fp4_flops_per_s else model.precision}")
        if model.family != "gpt-oss":
            met.add("gated-experts")
        if layout.expert_parallel > 1:
            met.add("expert-parallel")
        if model.expert_parameters and 0.9 < model.expert_bytes / model.expert_parameters < 1.5:
            met.add(f"{gpu.generation}-fp8-experts")
        hopper = gpu.generation == "hopper" and engine == "vllm"
        if hopper and model.precision == "fp8" and model.family is None:
            met.add("vllm-hopper-fp8-experts")
    if layout.draft_tokens:
        met.add("one-draft" if layout.draft_tokens == 1 else "several-drafts")
    if not asynchronous:
        met.add("synchronous")
    if gpu.name.startswith("g"):
        met.add("grace")
    met.add(f"{model.family}-{engine}")
    return frozenset(met)


def _entry(name: str, condition: str, part: Mapping[str, Any]) -> Constant:
    reason = part["source"] if "source" in part else part.get("assumption", "")
    return Constant(
        name,
        condition,
        float(part["value"]),
        float(part.get("prior", part["value"])),
        float(part.get("spread", 0.3)),
        reason,
    )


_HEAD = """\
# Constants of the step time (kvsim/times/roofline.py says what each term is).
#
#   value    as fitted: seconds, a part of a peak, or a number
#   prior    what was expected before the fit
#   spread   how far the fit may go from it: standard deviation of the logarithm
#   factors  what multiplies it where a set-up meets a condition
#   fit      what it was fitted to, and how far it was off there and on set-ups left out in turn
"""


def constants_yaml(constants: Constants, *, whole: bool = True) -> str:
    """A file that ``read_constants`` reads, for the catalog or beside scenarios.

    Args:
        constants: what to write.
        whole: false for some of them, beside those of the catalog.
    """
    lines = [_HEAD if whole else f"{_HEAD}#\n# What is not here is as in the catalog.\n", "fit:"]
    for key, value in constants.fit.items():
        if not isinstance(value, Mapping):
            lines.append(f"  {key}: {json.dumps(value)}")
            continue
        said = "  # points; median errors of TTFT and TPOT, fitted to the others"
        lines.append(f"  {key}:{said * (key == 'set_ups')}")
        lines += [f"    {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items()]
    lines += ["", "constants:"]
    for entry in constants.entries:
        numbers = f"value: {entry.value:.4g}, prior: {entry.prior:g}, spread: {entry.spread:g}"
        if not entry.condition:
            lines += [f"  {entry.name}:", *(f"    {part}" for part in numbers.split(", "))]
            lines.append(f"    source: {json.dumps(entry.reason)}")
            continue
        if lines[-1].startswith("    source"):
            lines.append("    factors:")
        lines.append(f"      {entry.condition}:")
        lines.append(f"        {{{numbers}, source: {json.dumps(entry.reason)}}}")
    return "\n".join(lines) + "\n"
