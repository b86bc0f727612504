"""`kvsim calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.terminal import Json, make_console, print_json, print_table
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.study.bench_times import Prediction
    from kvsim.study.calibration import Calibration

_MOST_MOVED = 12


def calibrate(
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED...",
            help="Results of vLLM's bench serve (JSON), SGLang's bench_serving (JSON, JSONL), "
            "AIPerf (JSON, CSV) or GuideLLM (JSON), or CSV with the columns of kvsim bench times; "
            "files, or directories of them.",
        ),
    ],
    scenario: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Scenario that says what served: model, GPU, TP, ..."),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="COLUMN=VALUE",
            help="What the files do not say, or say wrongly: model, gpu, precision, engine, tp, "
            "concurrency, ... May be given again.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the constants are written. Default: nowhere."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the constants of step times to your own measurements.

    Each point is simulated as a closed loop of prompts that share nothing.

    Constants stay at the catalog's where the points say nothing.

    A third of the set-ups at a time (of the load points where there is one set-up) is held back.

    Scenarios name the file: step_time: {kind: roofline, constants: FILE}.
    """
    from kvsim.study.calibration import calibrate as fit_points
    from kvsim.study.measured_files import parse_settings, read_points
    from kvsim.times.constants import constants_of, constants_yaml

    columns = parse_settings(settings)
    loaded, start = None, None
    if scenario is not None:
        from kvsim.scenario import RooflineStepTime
        from kvsim.scenario.reading import load_scenario

        loaded = load_scenario(scenario, check_files=False)
        chosen = loaded.step_time
        if isinstance(chosen, RooflineStepTime) and chosen.constants_file is not None:
            start = constants_of(chosen.constants_file)
    points = read_points(measured, columns, loaded)
    where = ", ".join(path.name for path in measured[:3]) + (", ..." if len(measured) > 3 else "")
    found = fit_points(points, where, start)
    if out is not None:
        _write(out, constants_yaml(found.fragment(), whole=False))
    if as_json:
        print_json(found.as_json())
        return
    _show(found, out)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvsimError(f"{path}: cannot be written: {error.strerror}.") from None


def _show(found: Calibration, out: Path | None) -> None:
    console = make_console()
    _points(console, found)
    _errors(console, found)
    _constants(console, found)
    for point in found.left_out:
        _say(console, f"Left out: {point.row['id']}: {point.left_out}.")
    if found.helps:
        _say(console, "What was held back came out nearer than with the catalog's constants.")
    else:
        _say(
            console,
            "What was held back came out no nearer than with the catalog's constants: these "
            "points do not support others. Measure more of them before you use the result.",
            style="yellow",
        )
    if out is not None:
        _say(console, f"Constants: {out}; name it in step_time.constants of a scenario.")
    else:
        _say(console, "Nothing was written: give --out FILE.")


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _points(console: Console, found: Calibration) -> None:
    from rich import box
    from rich.table import Table

    set_ups = list(dict.fromkeys(p.point.set_up for p in found.before))
    for name in set_ups:
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
            collapse_padding=True,
            pad_edge=False,
            show_edge=False,
        )
        model, gpu, engine, precision, tp, _ = name.split("|")
        table.title = f"{model} {precision}, {gpu}, {engine}, TP{tp}"
        table.title_justify, table.title_style = "left", "bold"
        headers = ("at once", "tokens", "TTFT", "before", "after", "held")
        for header in (*headers, "TPOT", "before", "after", "held"):
            table.add_column(header, justify="right", no_wrap=True)
        rows = zip(found.before, found.after, found.held_back, strict=True)
        for before, after, held in rows:
            if before.point.set_up != name:
                continue
            point = before.point
            table.add_row(
                f"{point.concurrency:,}",
                f"{point.row['isl']}+{point.row['osl']}",
                *_cells("ttft_s", (before, after, held)),
                *_cells("tpot_s", (before, after, held)),
            )
        print_table(console, table)
        console.print()


def _cells(name: str, predictions: Sequence[Prediction]) -> list[str]:
    from kvsim.results.tables import seconds

    measured = getattr(predictions[0].point, name)
    if measured != measured:
        return [""] * (1 + len(predictions))
    return [
        seconds(measured),
        *(f"{getattr(prediction, name) / measured - 1:+.0%}" for prediction in predictions),
    ]


def _errors(console: Console, found: Calibration) -> None:
    from kvsim.study.bench_times import errors_of

    said = {"before": found.before, "after": found.after, "held back": found.held_back}
    for place, name in enumerate(("TTFT", "TPOT")):
        parts = []
        for label, predictions in said.items():
            error = errors_of(predictions)[place]
            if error.n:
                parts.append(f"{label} {error.median:.1%} / {error.p90:.1%}")
        if parts:
            _say(console, f"{name} error, median / p90: {', '.join(parts)}")
    _say(
        console,
        f"Held: held back, one of {found.parts} parts in turn, by {found.held_back_by}"
        + (" (there is one set-up)." if found.held_back_by == "load point" else "."),
    )


def _constants(console: Console, found: Calibration) -> None:
    from rich import box
    from rich.table import Table

    moved = found.moved
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for header in ("constant", "catalog", "fitted", "times", "+-", "told"):
        table.add_column(header, justify="left" if header == "constant" else "right", no_wrap=True)
    for move in moved[:_MOST_MOVED]:
        table.add_row(
            move.label,
            f"{move.before:.3g}",
            f"{move.after:.3g}",
            f"{move.after / move.before:.2f}",
            f"{move.spread:.0%}",
            f"{move.said:.0%}",
        )
    console.print()
    print_table(console, table)
    if len(moved) > _MOST_MOVED:
        rest = ", ".join(
            f"{move.label} x{move.after / move.before:.2f}" for move in moved[_MOST_MOVED:]
        )
        _say(console, f"Moved less: {rest}")
    _say(console, "told: part of what was uncertain about it that the points took away.")
    if found.not_identified:
        _say(console, f"Not told by these points: {', '.join(found.not_identified)}")
    console.print()
