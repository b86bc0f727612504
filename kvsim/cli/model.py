"""`kvsim model`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, print_json
from kvsim.errors import KvsimError


def model(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A checkpoint's config.json, or its folder.")
    ],
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs that split heads.")] = 1,
    kv_cache_dtype: Annotated[str, typer.Option(help="As the engine takes it.")] = "auto",
    gpu: Annotated[str | None, typer.Option(help="GPU of the catalog.")] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add it to your catalog file under this name."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where the config is from, to save.")] = None,
    as_json: Json = False,
) -> None:
    """Show the KV cache groups that the engine makes of a config.json.

    --save adds it to the file that the environment variable KVSIM_CATALOG names.
    """
    from kvsim import catalog
    from kvsim.planning.config import read_json
    from kvsim.planning.settings import HOPPER, KV_DTYPES, Settings
    from kvsim.scenario.model_report import model_data, model_text, save_model

    if kv_cache_dtype not in KV_DTYPES:
        known = ", ".join(KV_DTYPES)
        raise KvsimError(f"--kv-cache-dtype: unknown dtype {kv_cache_dtype!r}. Known: {known}.")
    capability = None if gpu is None else catalog.gpu(gpu).capability
    settings = Settings(
        tensor_parallel=tensor_parallel,
        kv_cache_dtype=kv_cache_dtype,
        capability=capability or HOPPER,
    )
    data = read_json(config)
    name = save or config.stem
    found = catalog.model_from_config(name, data, settings, None, source or str(config))
    if as_json:
        print_json(model_data(found))
    else:
        sys.stdout.write(model_text(found) + "\n")
    if save is not None:
        place = save_model(save, data, source or str(config))
        sys.stderr.write(f"Saved as {save} in {place}.\n")
