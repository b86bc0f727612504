"""`kvsim trace`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kvsim.cli import trace_figures, trace_fit, trace_synthesize
from kvsim.cli.terminal import Json, print_json
from kvsim.errors import KvsimError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.workload.request import Request
    from kvsim.workload.traces import Trace

app = typer.Typer(help="Look into traces, change them, make them.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Look into traces, change them, make them."""


TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file.")]
OutFile = Annotated[
    Path,
    typer.Argument(
        metavar="OUT", help="New file: .jsonl, .jsonl.gz, .jsonl.zst or .parquet, as Mooncake."
    ),
]
Format = Annotated[
    str, typer.Option("--format", metavar="NAME", help="Format; auto recognises it.")
]
BlockTokens = Annotated[
    int | None,
    typer.Option(
        min=1, max=2**20, metavar="N", help="Tokens an id stands for, where the file does not say."
    ),
]
Starts = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="When sessions start: recorded, together, poisson(per_s=2), ... "
        "Default: as recorded, else uniform(span_s=12 h).",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="What is drawn follows from it.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse what would be put right with a notice.")
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out lines that cannot be used, up to 5 %, and count."),
]
TimeUnit = Annotated[
    str, typer.Option(metavar="auto|s|ms|us|ns", help="Of the file's times; auto recognises it.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT=NAME,...",
        help="Columns of a table: time, prompt, output, session, ids, delay.",
    ),
]
Tokenizer = Annotated[
    str,
    typer.Option(metavar="NAME", help="Cuts text of logs: characters, or a tokenizer.json."),
]


@app.command("inspect")
def inspect_trace(
    trace: TraceFile,
    trace_format: Format = "auto",
    block_tokens: BlockTokens = None,
    time_unit: TimeUnit = "auto",
    columns: Columns = None,
    skip_bad: SkipBad = False,
    capacity: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Cache sizes in blocks. Default: powers of 2."),
    ] = None,
    policy: Annotated[str, typer.Option(metavar="lru|fifo", help="What leaves first.")] = "lru",
    window: Annotated[
        str, typer.Option(metavar="all|last-half", help="Requests whose hits count.")
    ] = "all",
    starts: Starts = None,
    seed: Seed = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="First requests of the trace.")] = None,
    strict: Strict = False,
    tokenizer: Tokenizer = "characters",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a trace holds and what a cache of whole blocks would find again.

    LRU hit rates of all sizes come from one pass. Where ids cover a part of a block at the end of a
    prompt, the ideal hit rate has two bounds: tails distinct, as recorded, and shared.
    """
    from dataclasses import replace

    from kvsim.workload.inspection import inspect
    from kvsim.workload.traces import TraceOptions, open_trace_file

    if plot is not None:
        from kvsim.plots import check_picture

        check_picture(plot)
    sizes = [] if capacity is None else _sizes(capacity)
    chosen_policy = _choice("--policy", policy, ("lru", "fifo"))
    chosen_window = _choice("--window", window, ("all", "last-half"))
    _check_starts(starts)
    options = TraceOptions(
        limit=limit,
        block_tokens=block_tokens,
        strict=strict,
        tokenizer=tokenizer,
        **_reading(time_unit, columns, skip_bad),
    )

    def opened(shared_tails: bool) -> Trace:
        return open_trace_file(
            trace, replace(options, shared_tails=shared_tails), trace_format=_format(trace_format)
        )

    first = opened(False)
    found = inspect(
        first,
        block_tokens=block_tokens,
        starts=starts,
        seed=seed,
        capacities_blocks=sizes,
        policy=cast("Any", chosen_policy),
        window=cast("Any", chosen_window),
        shared=None if first.block_tokens is None else opened(True),
    )
    if plot is not None:
        from kvsim.plots import save, trace_reuse

        save(trace_reuse(found, trace.name), plot)
    if as_json:
        print_json(found.figures)
    else:
        trace_figures.show(found.figures)


@app.command()
def convert(
    trace: TraceFile,
    out: OutFile,
    trace_format: Format = "auto",
    block_tokens: BlockTokens = None,
    time_unit: TimeUnit = "auto",
    columns: Columns = None,
    skip_bad: SkipBad = False,
    coarsen: Annotated[
        int | None,
        typer.Option(min=1, max=2**20, metavar="N", help="Tokens a written id stands for."),
    ] = None,
    starts: Starts = None,
    seed: Seed = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="First requests of the trace.")] = None,
    strict: Strict = False,
    tokenizer: Tokenizer = "characters",
) -> None:
    """Write a trace of any format in Mooncake's, requests by time."""
    requests, tokens = _opened(
        trace,
        trace_format,
        block_tokens,
        starts,
        seed,
        limit=limit,
        strict=strict,
        tokenizer=tokenizer,
        **_reading(time_unit, columns, skip_bad),
    )
    if coarsen is not None and coarsen % tokens:
        text = f"{coarsen} is no multiple of the {tokens} tokens that an id of {trace} stands for"
        raise KvsimError(f"--coarsen: {text}.")
    from kvsim.workload.prompts import Prompts, PromptsReader
    from kvsim.workload.traces import TraceOptions, open_trace_file

    read = PromptsReader(requests)
    _write(out, iter(read), coarsen or tokens)
    before = read.prompts()
    if before.returns.any():
        written = Prompts.from_requests(open_trace_file(out, TraceOptions()).requests())
        rates = [100 * prompts.ideal_token_hit_rate() for prompts in (before, written)]
        sys.stderr.write(
            f"Note: {before.returns.sum():,} answers come back in later prompts, and Mooncake's "
            f"rows have no ids for answers: ideal hits {rates[1]:.1f}% of tokens, {rates[0]:.1f}% "
            "before.\n"
        )


@app.command()
def sample(
    trace: TraceFile,
    out: OutFile,
    share: Annotated[float, typer.Option(metavar="0..1", help="Share of the sessions kept.")],
    trace_format: Format = "auto",
    block_tokens: BlockTokens = None,
    time_unit: TimeUnit = "auto",
    columns: Columns = None,
    skip_bad: SkipBad = False,
    starts: Starts = None,
    seed: Seed = 0,
) -> None:
    """Keep a random share of the sessions, each whole.

    Where there are none, prompts with the same beginning are kept or left together, and the ideal
    hit rate before and after says how well that went.
    """
    from kvsim.results.tables import percent
    from kvsim.workload.prompts import Prompts, PromptsReader
    from kvsim.workload.traces.editing import families, sampled

    if not 0 < share <= 1:
        raise KvsimError(f"--share: {share:g} is out of range. Use a share above 0, up to 1.")

    def opened(notices: bool) -> tuple[Iterator[Request], int]:
        reading = _reading(time_unit, columns, skip_bad)
        return _opened(trace, trace_format, block_tokens, starts, seed, notices=notices, **reading)

    requests, tokens = opened(True)
    everything = Prompts.from_requests(requests)
    kept = PromptsReader(sampled(opened(False)[0], share, seed, families(everything)))
    _write(out, iter(kept), tokens)
    before, after = everything.ideal_token_hit_rate(), kept.prompts().ideal_token_hit_rate()
    sys.stdout.write(f"ideal hits: {percent(after)} of tokens, {percent(before)} before\n")


@app.command()
def scale(
    trace: TraceFile,
    out: OutFile,
    time: Annotated[
        float, typer.Option("--time", metavar="FACTOR", help="On all times; 2 halves the rate.")
    ],
    trace_format: Format = "auto",
    block_tokens: BlockTokens = None,
    time_unit: TimeUnit = "auto",
    columns: Columns = None,
    skip_bad: SkipBad = False,
    starts: Starts = None,
    seed: Seed = 0,
) -> None:
    """Stretch or press the times of a trace, also those between the turns of a session."""
    if not 0 < time < 1e9:
        raise KvsimError(f"--time: {time:g} is out of range. Use a factor above 0.")
    requests, tokens = _opened(
        trace,
        trace_format,
        block_tokens,
        starts,
        seed,
        time_scale=time,
        **_reading(time_unit, columns, skip_bad),
    )
    _write(out, requests, tokens)


@app.command()
def merge(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE TRACE...", help="Trace files.")],
    out: Annotated[Path, typer.Option("--out", metavar="OUT", help="New file, as for convert.")],
    trace_format: Format = "auto",
    block_tokens: BlockTokens = None,
    time_unit: TimeUnit = "auto",
    columns: Columns = None,
    skip_bad: SkipBad = False,
    starts: Starts = None,
    seed: Seed = 0,
) -> None:
    """Play several traces at once; what one shares is never shared with another."""
    from kvsim.workload.traces.editing import merged

    reading = _reading(time_unit, columns, skip_bad)
    opened = [
        _opened(trace, trace_format, block_tokens, starts, seed, **reading) for trace in traces
    ]
    sizes = sorted({tokens for _, tokens in opened})
    if len(sizes) > 1:
        text = f"the traces have blocks of {', '.join(map(str, sizes))} tokens"
        raise KvsimError(f"{text}. Convert them to one size first, or give exact ones the other's.")
    _write(out, merged([requests for requests, _ in opened]), sizes[0])


def _reading(time_unit: str, columns: str | None, skip_bad: bool) -> dict[str, Any]:
    """Options of how a file is read."""
    from kvsim.workload.traces import COLUMNS

    named = None
    if columns is not None:
        named = dict(part.strip().partition("=")[::2] for part in columns.split(","))
        wrong = next(
            (what for what, name in named.items() if not name or what not in COLUMNS), None
        )
        if wrong is not None:
            text = f"{columns!r} is not WHAT=NAME,... with WHAT one of {', '.join(COLUMNS)}"
            raise KvsimError(f"--columns: {text}. Write it as in time=arrived_at,prompt=tokens.")
    unit = _choice("--time-unit", time_unit, ("auto", "s", "ms", "us", "ns"))
    return {"time_unit": unit, "columns": named, "skip_bad": skip_bad}


def _format(name: str) -> str:
    from kvsim.workload.traces import FORMATS

    if name != "auto" and name not in FORMATS:
        raise KvsimError(f"--format: {unknown_name('format', name, ['auto', *FORMATS])}")
    return name


def _choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        name = option.removeprefix("--")
        raise KvsimError(f"{option}: {unknown_name(name, value, choices)}")
    return value


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1 or max(sizes) > 2**40:
        text = f"{text!r} is no list of sizes. Write numbers of blocks, as in 1000,10000."
        raise KvsimError(f"--capacity: {text}")
    return sizes


def _check_starts(starts: str | None) -> None:
    from kvsim.scenario.draws import parse_starts

    if starts is not None:
        try:
            parse_starts(starts)
        except ValueError as error:
            raise KvsimError(f"--starts: {error}") from None


def _opened(
    trace: Path,
    trace_format: str,
    block_tokens: int | None,
    starts: str | None,
    seed: int,
    *,
    notices: bool = True,
    **options: Any,
) -> tuple[Iterator[Request], int]:
    """The requests of a trace by time, and the tokens of its blocks."""
    from kvsim.workload.inspection import EXACT_BLOCK_TOKENS, timed_requests
    from kvsim.workload.traces import TraceOptions, open_trace_file

    _check_starts(starts)
    opened = open_trace_file(
        trace,
        TraceOptions(block_tokens=block_tokens, **options),
        trace_format=_format(trace_format),
    )
    requests, _ = timed_requests(opened, starts, seed)

    def noticed() -> Iterator[Request]:
        yield from requests
        if notices:
            for notice in opened.warnings:
                sys.stderr.write(f"Note: {notice}\n")

    return noticed(), opened.block_tokens or block_tokens or EXACT_BLOCK_TOKENS


def _write(out: Path, requests: Iterator[Request], block_tokens: int) -> None:
    from kvsim.workload.traces.writing import write_mooncake

    num_requests = write_mooncake(out, requests, block_tokens)
    sys.stdout.write(f"{out}: {num_requests:,} requests, an id for every {block_tokens} tokens\n")


app.command("synthesize")(trace_synthesize.synthesize)
app.command("fit")(trace_fit.fit)
