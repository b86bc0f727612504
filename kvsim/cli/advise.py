"""`kvsim advise`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.tables import Column, Wide, fitted
from kvsim.cli.terminal import (
    Json,
    Only,
    ScenarioFile,
    Settings,
    Trust,
    chosen_variants,
    make_console,
    print_json,
    print_table,
)
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvsim.scenario import Scenario
    from kvsim.study.advice import Advice
    from kvsim.study.advice_gains import Gain
    from kvsim.study.sweeps import Progress


def advise(
    scenario: ScenarioFile,
    settings: Settings = [],  # noqa: B006 - typer copies it
    only: Only = [],  # noqa: B006
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", min=2, help="Seeds that gains are judged on, where the workload is drawn."
        ),
    ] = 4,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Simulations at once. Default: all cores."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Advice and runs go to DIR. Default: results/<scenario name>/advice/.",
        ),
    ] = None,
    wide: Wide = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Say which order, retention and tier to set for a scenario's own workload.

    Tries them on short stretches, then the best on all of it, and judges these on requests that
    they were not chosen on. One that was stopped goes on where it was.
    """
    from kvsim.scenario.reading import load_scenario
    from kvsim.study.advice import advise as find_advice
    from kvsim.study.advice_files import advice_json, publish, working_directory

    chosen = _one(load_scenario(scenario, settings), only, scenario)
    out_dir = out if out is not None else Path("results") / chosen.name / "advice"
    work = working_directory(out_dir)
    advice = find_advice(chosen, work, num_seeds=seeds, jobs=jobs, on_progress=_tell)
    publish(advice, work, out_dir)
    if as_json:
        print_json(advice_json(advice))
    else:
        _show(advice, out_dir, wide)


def _one(loaded: Scenario, only: Sequence[str], path: Path) -> Scenario:
    """The variant that is asked about."""
    variants = chosen_variants(loaded, only, path)
    if len(variants) > 1:
        names = ", ".join(variants)
        raise KvsimError(
            f"{path}: has variants ({names}). Name the one that is set now: "
            f"--only {next(iter(variants))}."
        )
    return next(iter(variants.values()))


def _tell(name: str, progress: Progress) -> None:
    """Says on a terminal's standard error how far it is, since it may take minutes."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{name}: {progress.num_done}/{progress.num_to_do} runs\x1b[K")
        if progress.num_done == progress.num_to_do:
            sys.stderr.write("\n")


def _show(advice: Advice, out_dir: Path, wide: bool) -> None:
    from kvsim.scenario.reading import as_yaml
    from kvsim.scenario.validation import lay_over
    from kvsim.study.advice_field import AS_SET

    console = make_console()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    for line in headlines(advice):
        say(line, "bold")
    if advice.set_to != AS_SET:
        say(as_yaml(lay_over({}, advice.keys)[0]).rstrip())
    if advice.gains:
        console.print()
        _print_gains(console, advice.gains, wide)
    for line in details(advice):
        say(line)
    for note in advice.notes:
        say(f"Note: {note}", "yellow")
    say(f"Results: {out_dir}")


def headlines(advice: Advice) -> list[str]:
    """What to do, in a sentence or two."""
    from kvsim.study.advice_field import AS_SET

    if advice.set_to == AS_SET:
        said = "Keep what is set: nothing tried finds more, beyond the noise."
        return [said, f"Judged on {advice.judged_on}."]
    best = advice.gain(advice.set_to)
    lines = [
        f"Set {advice.set_to}: {_points(best.gain)} points more tokens are found"
        f"{_interval(best)}, judged on {advice.judged_on}."
    ]
    if advice.ties:
        lines.append(f"Nothing tells it from {', '.join(advice.ties)}.")
    if advice.engine_best not in (advice.set_to, AS_SET):
        own = advice.gain(advice.engine_best)
        lines.append(
            f"An engine as it is does not have that. Of what it has, {advice.engine_best} is best: "
            f"{_points(own.gain)} points{_interval(own)}."
        )
    elif advice.engine_best == AS_SET:
        lines.append("An engine as it is does not have that; of what it has, nothing finds more.")
    return lines


def details(advice: Advice) -> list[str]:
    """The ceiling and the sizes of the tier, a line each."""
    from kvsim.results.tables import percent
    from kvsim.study.advice_field import AS_SET

    lines = []
    infinite, optimum = (advice.ceiling.get(name) for name in ("infinite", "optimum"))
    if infinite is not None:
        bound = "" if optimum is None else f", {percent(optimum)} by the offline optimum at most"
        most = f"{percent(infinite)} if nothing is evicted{bound}"
        lines.append(f"Ceiling, on the device over the whole workload: {most}.")
    if advice.sizes:
        told = [
            f"{name} {percent(rate)}"
            for name, rate in advice.sizes.items()
            if rate is not None and name != AS_SET
        ]
        lines.append(f"Tokens found with other sizes of the tier: {', '.join(told)}.")
    num = len({one.label for one in advice.tried})
    lines.append(f"{num} settings were tried, {len(advice.gains)} of them on the whole workload.")
    return lines


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _interval(gain: Gain) -> str:
    if gain.low is None or gain.high is None:
        return " (too few requests for an interval)"
    return f" ({_points(gain.low)} to {_points(gain.high)})"


def _print_gains(console: Console, gains: Sequence[Gain], wide: bool) -> None:
    from kvsim.results.tables import NO_FIGURE, percent, seconds, short, size
    from kvsim.study.advice_gains import BRANCHES, NEXT_TURNS

    def pair(values: tuple[float | None, float | None], words: object) -> str:
        assert callable(words)
        before, after = (NO_FIGURE if one is None else words(one) for one in values)
        return f"{before} > {after}"

    columns = [
        Column("setting", [one.label for one in gains], is_name=True),
        Column("tokens\nfound", [percent(one.found_rate) for one in gains]),
        Column("gain,\npoints", [_points(one.gain) for one in gains]),
        Column("95%\ninterval", [_interval_cell(one) for one in gains]),
    ]
    for name, leaves in ((NEXT_TURNS, 5), (BRANCHES, 6)):
        if any(name in one.classes for one in gains):
            cells = [pair(one.classes.get(name, (None, None)), percent) for one in gains]
            columns.append(Column(f"{name},\nfound", cells, leaves))
    columns.append(Column("TTFT\np50", [pair(one.ttft_p50_s, seconds) for one in gains], 3))
    computed = [pair(one.computed_tokens, short) for one in gains]
    columns.append(Column("tokens\ncomputed", computed, 1))
    if any(any(one.bytes_moved) for one in gains):
        columns.append(Column("to tiers\nand back", [pair(g.bytes_moved, size) for g in gains], 4))
    print_table(console, fitted(columns, None if wide else console.width))


def _interval_cell(gain: Gain) -> str:
    if gain.low is None or gain.high is None:
        return "unknown"
    return f"{_points(gain.low)} .. {_points(gain.high)}"
