"""`kvsim reference`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, Only, print_json, progress_bars

app = typer.Typer(help="Reference results of shipped scenarios.", no_args_is_help=True)

_DEFAULT = Path("results/reference")
_DOCUMENTS = (Path("README.md"), Path("results/validation.md"))


@app.command()
def update(
    scenarios: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO...", help="Scenario files (YAML).")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="References go to DIR/<scenario name>/.")
    ] = _DEFAULT,
) -> None:
    """Run scenarios and write their summaries and plots as reference."""
    from kvsim.report.reference_plots import draw_reference
    from kvsim.results.reference import update_reference
    from kvsim.scenario.reading import expand_variants, load_scenario

    loaded = [list(expand_variants(load_scenario(scenario))) for scenario in scenarios]
    for scenario, variants in zip(scenarios, loaded, strict=True):
        with progress_bars(variants) as told:
            written = update_reference(scenario, out, draw_reference, told)
        sys.stdout.write(f"Reference: {written}\n")


@app.command()
def tables(
    documents: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="Documents. Default: README.md, validation.md."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--in", metavar="DIR", help="Where the references are.")
    ] = _DEFAULT,
    check_only: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 where a table differs.")
    ] = False,
) -> None:
    """Write the tables of reference results into the documents that show them."""
    from kvsim.report.documents import with_tables
    from kvsim.scenario.writing import write_text

    differs = False
    for document in documents or _DOCUMENTS:
        text = with_tables(document, directory)
        same = text == document.read_text(encoding="utf-8")
        if not (same or check_only):
            write_text(document, text)
        differs |= not same
        said = "holds" if same else "differs" if check_only else "written"
        sys.stdout.write(f"{document}: {said}\n")
    if differs and check_only:
        raise typer.Exit(1)


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="References. Default: all.")
    ] = None,
    directory: Annotated[
        Path, typer.Option("--in", metavar="DIR", help="Where the references are.")
    ] = _DEFAULT,
    only: Only = [],  # noqa: B006 - typer copies it
    as_json: Json = False,
) -> None:
    """Run the scenarios of references again and say whether every figure is still the same.

    Exit code 0: all hold; 1: some do not; 2: a reference or a scenario is broken.
    """
    from kvsim.results.reference import check_reference, read_reference, references

    chosen = [directory / name for name in names] if names else references(directory)
    variants = [list(only) or list(read_reference(path)["variants"]) for path in chosen]
    checks = []
    for path, shown in zip(chosen, variants, strict=True):
        with progress_bars(shown) as told:
            checks.append(check_reference(path, only, told))
    if as_json:
        print_json(
            [
                {
                    "name": result.name,
                    "holds": result.holds,
                    "num_figures": result.num_figures,
                    "scenario_changed": result.scenario_changed,
                    "differences": [
                        {
                            "variant": difference.variant,
                            "figure": difference.figure,
                            "reference": difference.reference,
                            "now": difference.now,
                        }
                        for difference in result.differences
                    ],
                }
                for result in checks
            ]
        )
    else:
        for result in checks:
            lines = [result.sentence(), *(f"  {line}" for line in result.differences)]
            sys.stdout.write("\n".join(lines) + "\n")
    if not all(result.holds for result in checks):
        raise typer.Exit(1)
