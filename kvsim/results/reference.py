"""Reference results: what shipped scenarios gave, kept small, and whether they still give it.

A reference is a directory with `summary.json` (the summaries of all variants, without real time)
and plots. It is changed by `kvsim reference update` alone, and the same runs write the same bytes,
so a change of a reference is always a change of results.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError, Problems, unknown_name
from kvsim.metrics.figures import flat_figures
from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from kvsim.scenario.reading import expand_variants, load_scenario, resolved_yaml
from kvsim.scenario.writing import write_text

REFERENCE_DIR = Path("results/reference")
"""Where references are kept, from the top of the project."""
SUMMARY_FILE = "summary.json"
RELATIVE_TOLERANCE = 1e-9
"""Relative difference of times and rates that is none: machines round alike to about 1e-15."""
_REAL_TIME = "wall_s"
_KEYS = ("command", "kvsim", "scenario", "scenario_sha256", "variants")

Told = Callable[[str], Callable[[float], None]]
"""Called with a variant's name, gives what is told the share done of it."""
Drawn = Callable[[Mapping[str, RunResult], Path], None]
"""Draws the plots of results by variant into a directory."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that is no longer what the reference says.

    Attributes:
        variant: of the scenario.
        figure: by dotted name.
        reference: what it was; None where there was none.
        now: what it is.
    """

    variant: str
    figure: str
    reference: float | None
    now: float | None

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.variant}: {self.figure} was {self.reference}, is {self.now}"


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a reference still holds.

    Attributes:
        name: of the reference.
        num_figures: figures that were compared.
        scenario_changed: the scenario resolves to something else than it did.
        differences: figures that differ.
    """

    name: str
    num_figures: int
    scenario_changed: bool
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Every figure is what it was."""
        return not self.differences

    def sentence(self) -> str:
        """What came out, in one line."""
        if self.holds:
            return f"{self.name}: holds ({self.num_figures} figures compared)"
        changed = "; its scenario has changed since" if self.scenario_changed else ""
        return (
            f"{self.name}: differs in {len(self.differences)} of {self.num_figures} figures"
            f"{changed}"
        )


def update_reference(
    scenario_file: Path, out_dir: Path, draw: Drawn, told: Told | None = None
) -> Path:
    """Run a scenario and write its reference, replacing an older one; returns its directory.

    Raises:
        KvsimError: something is wrong with the scenario, or the reference cannot be written.
    """
    from kvsim import __version__

    scenario = load_scenario(scenario_file)
    results = _run(scenario_file, None, told)
    directory = out_dir / scenario.name
    written = _relative(scenario_file, directory)
    content = {
        "command": f"kvsim reference update {written.removeprefix('../' * written.count('../'))}",
        "kvsim": __version__,
        "scenario": written,
        "scenario_sha256": _scenario_hash(scenario_file),
        "variants": {name: _kept(result) for name, result in results.items()},
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(directory / SUMMARY_FILE, text + "\n")
    except OSError as error:
        raise KvsimError(
            f"{directory}: cannot be written: {error.strerror}. Give another --out."
        ) from None
    draw(results, directory)
    return directory


def check_reference(directory: Path, only: Iterable[str] = (), told: Told | None = None) -> Check:
    """Run the scenario of a reference again and compare every figure.

    Args:
        directory: of the reference.
        only: variants to compare; none for all.
        told: for a progress bar.

    Raises:
        KvsimError: there is no such reference, it is damaged, or its scenario cannot be run.
    """
    content = read_reference(directory)
    kept: Mapping[str, Mapping[str, Any]] = content["variants"]
    unknown = [name for name in only if name not in kept]
    if unknown:
        raise Problems(
            str(directory), [f"--only: {unknown_name('variant', name, kept)}" for name in unknown]
        )
    file = directory / str(content["scenario"])
    chosen = list(only) or None
    results = _run(file, chosen, told)
    compared = {name: kept.get(name, {}) for name in chosen or dict.fromkeys([*kept, *results])}
    num_figures, differences = 0, []
    for name, summary in compared.items():
        before = flat_figures(summary)
        after = flat_figures(_kept(results[name])) if name in results else {}
        for figure in dict.fromkeys([*before, *after]):
            num_figures += 1
            was, now = before.get(figure), after.get(figure)
            if not _same(was, now):
                differences.append(Difference(name, figure, was, now))
    changed = content["scenario_sha256"] != _scenario_hash(file)
    return Check(directory.name, num_figures, changed, tuple(differences))


def read_reference(directory: Path) -> dict[str, Any]:
    """The content of a reference's `summary.json`.

    Raises:
        KvsimError: there is none, or it is damaged.
    """
    file = directory / SUMMARY_FILE
    remedy = "Make it with kvsim reference update."
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Problems(str(directory), [f"path: is no reference. {remedy}"]) from None
    except (OSError, ValueError) as error:
        raise Problems(str(directory), [f"{SUMMARY_FILE}: damaged ({error}). {remedy}"]) from None
    missing = [key for key in _KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise Problems(str(directory), [f"{SUMMARY_FILE}: lacks {', '.join(missing)}. {remedy}"])
    return dict(content)


def references(out_dir: Path) -> list[Path]:
    """The directories of all references, by name.

    Raises:
        KvsimError: there are none.
    """
    found = sorted(file.parent for file in out_dir.glob(f"*/{SUMMARY_FILE}"))
    if not found:
        raise Problems(str(out_dir), ["path: holds no reference. Give the directory with --in."])
    return found


def _run(file: Path, only: list[str] | None, told: Told | None) -> dict[str, RunResult]:
    variants = expand_variants(load_scenario(file))
    return {
        name: run_variant(variant, name, on_progress=told(name) if told else None)
        for name, variant in variants.items()
        if only is None or name in only
    }


def _scenario_hash(file: Path) -> str:
    """Of what the scenario resolves to, variants included; comments do not count."""
    variants = expand_variants(load_scenario(file))
    text = "\n".join(
        f"{name}\n{resolved_yaml(variant, variant.directory)}" for name, variant in variants.items()
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(result: RunResult) -> dict[str, Any]:
    return {key: value for key, value in result.summary.items() if key != _REAL_TIME}


def _same(was: float | None, now: float | None) -> bool:
    if was is None or now is None:
        return was is now
    if isinstance(was, int) and isinstance(now, int):
        return was == now
    return math.isclose(was, now, rel_tol=RELATIVE_TOLERANCE, abs_tol=0.0)


def _relative(path: Path, directory: Path) -> str:
    return Path(os.path.relpath(path.resolve(), directory.resolve())).as_posix()
