"""What the verbs share: options, printing, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.errors import KvsimError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from kvsim.scenario import Scenario

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]


def _keys_like(begun: str) -> list[str]:
    """Dotted keys of a scenario that begin as given, for the shell."""
    from kvsim.scenario import Scenario
    from kvsim.scenario.validation import sections

    keys = {
        f"{place}.{key}" if place else key
        for place, section in sections(Scenario)
        for key in section.model_fields
    }
    return sorted(f"{key}=" for key in keys if key.startswith(begun))


def _variants_like(context: typer.Context, begun: str) -> list[str]:
    """Variants of the scenario given before, for the shell; none where it cannot be read."""
    from kvsim.scenario.reading import load_scenario

    for word in context.args:  # not parsed yet, as a value is missing
        if word.endswith((".yaml", ".yml")):
            try:
                names = load_scenario(word, check_files=False).variants
            except KvsimError:
                continue
            return [name for name in names if name.startswith(begun)]
    return []


RunOrSweep = Annotated[
    Path,
    typer.Argument(metavar="RUN_OR_SWEEP", help="A result, a directory of results, or a sweep."),
]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        autocompletion=_keys_like,
        metavar="KEY=VALUE",
        help="Change a key of the base, dotted, the value in YAML: cache.retention_interval=4096. "
        "May be given again.",
    ),
]
Only = Annotated[
    list[str],
    typer.Option(
        metavar="VARIANT",
        autocompletion=_variants_like,
        help="This variant alone. May be given again.",
    ),
]


def _trust(wanted: bool) -> bool:
    from kvsim.policies.finding import trust_policies

    if wanted:
        trust_policies()
    return wanted


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_trust,
        is_eager=True,
        help="Run policies and routers whose code is in no installed package.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def chosen_variants(loaded: Scenario, only: Iterable[str], path: Path) -> dict[str, Scenario]:
    """The variants of a scenario, or those named alone.

    Raises:
        KvsimError: a name is none of a variant.
    """
    from kvsim.scenario.reading import expand_variants

    variants = expand_variants(loaded)
    unknown = [name for name in only if name not in variants]
    if unknown:
        raise KvsimError(
            "\n".join(f"{path}: --only: {unknown_name('variant', n, variants)}" for n in unknown)
        )
    wanted = set(only) or set(variants)
    return {name: variant for name, variant in variants.items() if name in wanted}


def print_json(value: object) -> None:
    """Write a value to standard output as JSON; NaN is an error of ours."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def complain(error: KvsimError) -> None:
    """Write what is wrong to standard error."""
    sys.stderr.write(f"{error}\n")


def make_console() -> Console:
    """Standard output; wide enough for the table where it is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


def print_table(console: Console, table: Table) -> None:
    """Print a table whole: lines longer than a narrow terminal wrap there, nothing is folded."""
    wanted = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.print(table, width=max(console.width, wanted), crop=False, soft_wrap=False)


@contextmanager
def progress_bars(names: Iterable[str]) -> Iterator[Callable[[str], Callable[[float], None]]]:
    """A bar a name on a terminal's standard error; elsewhere only that code is being compiled.

    Yields:
        Called with a name, the function that takes the share done of it, 0 to 1, or a number below
        0 while code is compiled.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as progress:
        tasks = {name: progress.add_task(name, total=1.0, start=False) for name in names}

        compiling = False

        def told(name: str) -> Callable[[float], None]:
            def tell(share: float) -> None:
                nonlocal compiling
                if share < 0 and not compiling:
                    compiling = True
                    if progress.disable:
                        sys.stderr.write("Compiling, once (one to two minutes).\n")
                text = f"{name} (compiling, once)" if share < 0 else name
                progress.update(tasks[name], completed=max(0.0, share), description=text)

            progress.start_task(tasks[name])
            return tell

        yield told
