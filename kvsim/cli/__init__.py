"""The command line: the verbs, one file each, and the only room that prints.

Reads arguments, calls the rooms below, shows what they return.
May come in: everything.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from kvsim.cli import (
    advise,
    bench,
    calibrate,
    capacity,
    catalog,
    compare,
    describe,
    explain,
    find,
    model,
    new,
    plot,
    policies,
    reference,
    report,
    routers,
    run,
    schema,
    sweep,
    times,
    trace,
    validate,
    verify,
)
from kvsim.cli.terminal import complain
from kvsim.errors import KvsimError

app = typer.Typer(
    name="kvsim",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(new.new)
app.command()(run.run)
app.command()(sweep.sweep)
app.command()(find.find)
app.command()(advise.advise)
app.command()(compare.compare)
app.command()(explain.explain)
app.command(help=plot.help_text())(plot.plot)
app.command()(report.report)
app.command()(validate.validate)
app.command()(capacity.capacity)
app.command()(model.model)
app.command()(catalog.catalog)
app.command()(routers.routers)
app.command()(describe.describe)
app.command()(policies.policies)
app.command()(calibrate.calibrate)
app.command()(schema.schema)
app.command()(verify.verify)
app.add_typer(trace.app, name="trace")
app.add_typer(reference.app, name="reference")
app.add_typer(bench.app, name="bench")
app.add_typer(times.app, name="times")


def main() -> None:
    """Run the command line; what the user can put right is printed alone, with exit code 2."""
    if hasattr(signal, "SIGPIPE") and sys.stdout is sys.__stdout__:
        # The reader of our output may go, as with `| head`: end as other commands do, silently.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app()
    except KvsimError as error:
        complain(error)
        sys.exit(2)
    except MemoryError as error:
        complain(KvsimError(f"not enough memory: {error}. Use a smaller pool or a shorter trace."))
        sys.exit(2)
    except OSError as error:
        complain(KvsimError(f"{error.filename or 'output'}: {error.strerror or error}."))
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from kvsim import __version__

        sys.stdout.write(f"kvsim {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Simulate prefix-cache eviction on multi-GPU LLM serving nodes."""
