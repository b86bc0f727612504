"""`kvsim validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.cli.terminal import ScenarioFile, Settings, Trust, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.study.layouts import SplitRow


def validate(
    scenario: ScenarioFile,
    settings: Settings = [],  # noqa: B006
    trust: Trust = False,
) -> None:
    """Check a scenario: print it as resolved and what follows from it, or all its problems."""
    from kvsim.cli.capacity import show_layouts
    from kvsim.scenario.description import describe
    from kvsim.scenario.not_simulated import not_simulated
    from kvsim.scenario.reading import expand_variants, load_scenario, resolved_yaml
    from kvsim.study.layouts import layouts

    loaded = load_scenario(scenario, settings)
    variants = expand_variants(loaded)
    text = describe(variants)
    refused = {str(problem) for one in variants.values() for problem in not_simulated(one)}
    text += "".join(f"\n\n`kvsim run` refuses it. {problem}" for problem in sorted(refused))
    if loaded.sweep is not None:
        from kvsim.study.sweep_points import expand_sweep

        points = expand_sweep(loaded)
        wrong = [point for point in points if point.message]
        text += f"\n\nSweep: {len(points)} runs over {', '.join(loaded.sweep.axes) or 'seeds'}."
        text += "".join(f"\n  {point.message}" for point in wrong[:1])
        text += f"\n  That is wrong with {len(wrong)} of them." if wrong else ""
    sys.stdout.write(f"{resolved_yaml(loaded, Path.cwd())}\n{text}\n")
    divided: dict[tuple[SplitRow, ...], Console] = {}
    for one in variants.values():
        divided.setdefault(layouts(one), make_console())
    for rows, console in divided.items():
        if rows:
            show_layouts(console, rows)
