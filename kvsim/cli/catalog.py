"""`kvsim catalog`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, make_console, print_json, print_table
from kvsim.errors import KvsimError, unknown_name


def catalog(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A GPU, model or link by its name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the GPUs, models and links there are, or show one with its sources."""
    from kvsim import catalog as entries
    from kvsim.scenario.model_report import entry_data, entry_text, model_data, model_text

    gpus, models, links = entries.gpu_names(), entries.model_names(), entries.link_names()
    if name is None:
        if as_json:
            print_json({"gpus": gpus, "models": models, "links": links})
        else:
            _list(gpus, models, links)
        return
    if name in models:
        model = entries.model(name)
        if as_json:
            print_json(model_data(model))
        else:
            sys.stdout.write(model_text(model) + "\n")
        return
    if name not in gpus and name not in links:
        raise KvsimError(f"NAME: {unknown_name('entry', name, [*gpus, *models, *links])}")
    found = entries.gpu(name) if name in gpus else entries.link(name)
    if as_json:
        print_json(entry_data(found))
    else:
        sys.stdout.write(entry_text(found) + "\n")


def _list(gpus: tuple[str, ...], models: tuple[str, ...], links: tuple[str, ...]) -> None:
    from rich.table import Table

    from kvsim import catalog as entries

    console = make_console()
    table = Table(title="GPUs", title_justify="left", box=None, pad_edge=False)
    for column in ("name", "memory", "bandwidth", "BF16", "FP8", "FP4"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for name in gpus:
        gpu = entries.gpu(name)
        peaks = (gpu.bf16_flops_per_s, gpu.fp8_flops_per_s, gpu.fp4_flops_per_s)
        table.add_row(
            name,
            f"{gpu.hbm_bytes / 2**30:,.1f} GiB",
            f"{gpu.hbm_bytes_per_s / 1e12:.2f} TB/s",
            *("" if peak is None else f"{peak / 1e12:,.0f} TFLOP/s" for peak in peaks),
        )
    print_table(console, table)
    table = Table(title="\nModels", title_justify="left", box=None, pad_edge=False)
    for column in ("name", "parameters", "active", "weights", "groups", "longest"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for name in models:
        model = entries.model(name)
        table.add_row(
            name,
            _billions(model.total_parameters),
            _billions(model.active_parameters),
            "" if model.weight_bytes is None else f"{model.weight_bytes / 1e9:,.1f} GB",
            f"{len(model.groups)}",
            "" if model.max_model_len is None else f"{model.max_model_len:,}",
        )
    print_table(console, table)
    console.print(f"\nLinks\n{', '.join(links)}", highlight=False)
    console.print("\nkvsim catalog NAME shows one with its sources.", highlight=False)


def _billions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:,.1f} B"
