"""A report of a run or a sweep: one HTML file that needs nothing beside it, fit to be printed.

It only reads results; nothing is simulated. What cannot be drawn from them is left out and named.
"""

from __future__ import annotations

import base64
import html
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError
from kvsim.metrics.figures import FOUND_RATE
from kvsim.results.tables import NO_FIGURE, difference_text, exists, percent, seconds, short
from kvsim.scenario.reading import shareable_yaml
from kvsim.scenario.writing import write_text
from kvsim.study import findings
from kvsim.study.frames import POLICY_KEYS
from kvsim.study.runs import Runs, labelled, mean_rows, read_runs, value_text

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Scenario
    from kvsim.study.comparison import Comparison

NOT_MODELLED = (
    "Several replicas and the router in front of them: one replica is simulated.",
    "Step times are a model, not a measurement: TTFT and TPOT carry its error, hit rates only so "
    "far as timing changes what is cached.",
    "Tokenisation, the network to the client, and the engine's own start-up are left out.",
    "Traffic other than this workload's: another day, other users or longer contexts may rank "
    "policies differently.",
)
"""What no run shows, for every report."""


def default_report(path: Path | str) -> Path:
    """Where a report goes: into a sweep or a directory of results, beside a single result."""
    path = Path(path)
    # A result's directory holds nothing else, or it could not be replaced by a new run.
    alone = (path / "summary.json").is_file()
    return path.with_name(f"{path.resolve().name}-report.html") if alone else path / "report.html"


def write_report(path: Path | str, out: Path | str, question: str | None = None) -> Path:
    """Write the report of a result, a directory of results or a sweep to one HTML file.

    Args:
        path: what to report.
        out: the file; replaced if it is there.
        question: what the report answers; None makes one from what was varied.

    Raises:
        KvsimError: there is nothing to report, or the file cannot be written.
    """
    out = Path(out)
    text = report_html(read_runs(path), question)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, text)
    except OSError as error:
        raise KvsimError(
            f"{out}: cannot be written: {error.strerror}. Give another --out."
        ) from None
    return out


def report_html(runs: Runs, question: str | None = None) -> str:
    """The report as HTML; the same runs give the same text."""
    from kvsim import __version__

    left_out: list[str] = []
    ceiling = _tried("The infinite-cache ceiling", left_out, lambda: _ceiling(runs))
    comparison = _tried("Intervals", left_out, lambda: _comparison(runs))
    name = runs.scenario.name
    sections = [
        _section("Recommendation", _recommendation(runs, comparison, ceiling)),
        _section("Set-up", _setup(runs, ceiling)),
        _section("Results", _table(runs) + _differences(comparison)),
        _section("Plots", "".join(_figures(runs, ceiling, left_out))),
        _section("Assumptions, and what is not modelled", _assumptions(runs, left_out)),
        _section("How to reproduce this", _reproduce(runs)),
    ]
    template = resources.files("kvsim").joinpath("report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        version=__version__,
        title=_text(f"{name}: kvsim report"),
        heading=_text(name),
        origin=_text(_origin(runs)),
        question=_text(question or _question(runs)),
        sections="\n".join(sections),
    )


# --- words ---


def _origin(runs: Runs) -> str:
    versions = runs.provenance.get("versions", {})
    started = str(runs.provenance.get("started", ""))[:10]
    count = "1 run" if len(runs.frame) == 1 else f"{len(runs.frame)} runs"
    failed = f", {len(runs.failures)} kinds of failure" if runs.failures else ""
    return f"kvsim {versions.get('kvsim') or ''} report on {count}{failed}, run {started}".strip()


def _question(runs: Runs) -> str:
    where = f"{_model(runs.scenario)} on {_node(runs.scenario)}"
    policies = runs.frame["policy"].nunique() > 1
    others = findings.other_axes(runs.axes)
    varied = [*(["cache policies"] if policies else []), *others]
    if not varied:
        return f"How does {where} serve {_workload(runs.scenario)}?"
    what = "Which of the cache policies" if policies else f"Which {', '.join(others)}"
    beside = f", as {', '.join(others)} varies," if policies and others else ""
    return f"{what} serves {_workload(runs.scenario)} best{beside} with {where}?"


def _model(scenario: Scenario) -> str:
    return scenario.model if isinstance(scenario.model, str) else "a custom model"


def _node(scenario: Scenario) -> str:
    node = scenario.node
    gpus = f"{node.gpus} x {(node.gpu or 'GPU').upper()}"
    return f"one node of {gpus}" if node.gpus > 1 else f"one {(node.gpu or 'GPU').upper()}"


def _workload(scenario: Scenario) -> str:
    workload = scenario.workload
    path = getattr(workload, "path", None)
    return f"the trace {Path(path).name}" if path else f"its {workload.kind} workload"


def _recommendation(runs: Runs, comparison: Comparison | None, ceiling: float | None) -> str:
    said: list[str] = []
    others = findings.other_axes(runs.axes)
    if not others:
        said += findings.policy_findings(runs.frame, comparison)
        said += _as_keys(runs)
    for axis in others:
        frame = labelled(runs.frame, [other for other in others if other != axis])
        if axis in findings.CAPACITY_AXES:
            said += findings.capacity_findings(frame, axis, ceiling)
        elif axis in findings.RATE_AXES:
            said += findings.rate_findings(frame, findings.RATE_AXES[axis])
    if others and runs.frame["policy"].nunique() > 1:
        said = _best_at_each_point(runs.frame, others) + said
    said += findings.tier_findings(labelled(runs.frame, others))
    if not said or (len(said) == 1 and said[0].startswith("Nothing is offloaded")):
        said.insert(0, "One configuration was run, so there is nothing to choose between.")
    told = (result.summary.get("step_times") or {} for result in runs.results.values())
    says = dict.fromkeys(text for step_times in told if (text := step_times.get("says")))
    cautions = [*findings.cautions(runs.frame, runs.warnings), *says]
    return (
        f'<div class="recommendation">{_list(said)}</div>'
        f"<p>What stands against taking this at face value:</p>{_list(cautions)}"
    )


def _as_keys(runs: Runs) -> list[str]:
    """The best policy as keys of a scenario, and what it gives away at window groups."""
    if len(runs.results) < 2:
        return []
    result = runs.results[findings.best_label(runs.frame)]
    scenario = result.scenario
    interval = "null" if scenario.retention_interval is None else str(scenario.retention_interval)
    lost = findings.window_loss(result.requests)
    return [
        f"As keys of a scenario: cache.free_queue: {scenario.free_queue}, "
        f"cache.retention_interval: {interval}.",
        f"With it, {percent(lost)} of prompt tokens were still held by full attention but not "
        "found, because a window or state group had kept nothing there.",
    ]


def _best_at_each_point(frame: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The best policy at each point of the other axes, points with the same answer put together."""
    by_best: dict[str, list[str]] = {}
    for point, rows in frame.groupby(list(axes), sort=True, dropna=False):
        values = point if isinstance(point, tuple) else (point,)
        shown = [value_text(value) for value in values]
        by_best.setdefault(findings.best_label(rows), []).append(" and ".join(shown))
    names = " and ".join(axes)
    return [
        f"Best at {names} {'; '.join(points)}: {best}. No interval is given for single points of "
        "a sweep; kvsim compare gives it."
        if number == 0
        else f"Best at {names} {'; '.join(points)}: {best}."
        for number, (best, points) in enumerate(by_best.items())
    ]


def _setup(runs: Runs, ceiling: float | None) -> str:
    scenario = runs.scenario
    first = runs.frame.iloc[0]
    rows = {
        "Model": _model(scenario),
        "Node": f"{_node(scenario)}, tensor parallel {scenario.num_ranks}",
        "Block pool": f"{_range(runs.frame['num_blocks'])} blocks",
        "Engine": f"{scenario.engine.profile}, {scenario.max_num_batched_tokens:,} tokens a "
        f"step, {scenario.max_num_seqs} sequences, up to {scenario.max_model_len:,} tokens",
        "Policies": "; ".join(dict.fromkeys(str(policy) for policy in runs.frame["policy"])),
        "Workload": f"{_workload(scenario)}: {int(first['num_requests']):,} requests, "
        f"{_range(runs.frame['arrivals_per_s'])} a second, "
        f"{short(int(first['prompt_tokens']))} prompt tokens, "
        f"{short(int(first['output_tokens']))} output tokens",
        "Infinite cache": f"would find {percent(ceiling)} of the prompt tokens"
        if ceiling is not None
        else "",
        "Objective": _objective(scenario),
        "Varied": ", ".join(runs.axes),
        "Seeds": ", ".join(str(seed) for seed in sorted(set(_seeds(runs)))),
    }
    cells = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in rows.items()
        if value
    )
    return f'<table class="pairs">{cells}</table>'


def _seeds(runs: Runs) -> list[int]:
    if "seed" in runs.frame.columns:
        return [int(seed) for seed in runs.frame["seed"]]
    return [result.scenario.seed for result in runs.results.values()]


def _objective(scenario: Scenario) -> str:
    objective = scenario.objective
    if objective is None:
        return "none"
    limits = {"TTFT": objective.ttft_s, "TPOT": objective.tpot_s}
    return ", ".join(f"{name} up to {seconds(limit)}" for name, limit in limits.items() if limit)


def _range(values: pd.Series[Any]) -> str:
    known = values.dropna()
    if known.empty:
        return NO_FIGURE
    low, high = known.min(), known.max()
    return (
        f"{low:,.4g}"
        if low == high and low < 1000
        else (f"{low:,.0f}" if low == high else f"{_short_number(low)} to {_short_number(high)}")
    )


def _short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# --- tables ---

_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Token hit rate", "token_hit_rate", percent),
    ("With tiers", FOUND_RATE, percent),
    ("Request hit rate", "request_hit_rate", percent),
    ("TTFT p50", "ttft_s.p50", seconds),
    ("TTFT p90", "ttft_s.p90", seconds),
    ("TTFT p99", "ttft_s.p99", seconds),
    ("TPOT p50", "tpot_s.p50", seconds),
    ("Requests/s", "requests_per_s", short),
    ("Output tokens/s", "output_tokens_per_s", short),
    ("Goodput", "goodput", percent),
    ("Preempted", "preemptions", short),
    ("Evicted blocks", "evicted_blocks", short),
    ("Bytes stored", "bytes_stored", short),
    ("Bytes loaded", "bytes_loaded", short),
    ("Refused", "num_refused", short),
)
_ONLY_IF_ANY = {"goodput", "preemptions", "bytes_stored", "bytes_loaded", "num_refused"}


def _table(runs: Runs) -> str:
    """A row a run; seeds are averaged."""
    others = findings.other_axes(runs.axes)
    frame = runs.frame
    keys = ["label", *others]
    columns = [
        column
        for column in _COLUMNS
        if (column[1] != FOUND_RATE or findings.found_column(frame) == FOUND_RATE)
        and (column[1] not in _ONLY_IF_ANY or frame[column[1]].fillna(0).astype(float).any())
    ]
    best = findings.best_label(frame) if not others and frame["label"].nunique() > 1 else None
    head = "".join(f"<th>{_text(name)}</th>" for name in ("Run", *others))
    head += "".join(f"<th>{_text(name)}</th>" for name, _, _ in columns)
    body = []
    for point, rows in frame.groupby(keys, sort=False, dropna=False):
        label, *values = point if isinstance(point, tuple) else (point,)
        cells = [_text(str(label)), *(_text(value_text(value)) for value in values)]
        for _, column, shown in columns:
            known = rows[column].astype(float).dropna()
            mean = float(known.mean()) if len(known) else None
            whole = mean is not None and mean.is_integer()
            cells.append(_text(shown(int(mean) if mean is not None and whole else mean)))
        style = ' class="best"' if label == best else ""
        body.append(f"<tr{style}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    note = _averaged(frame, keys)
    rows_text = "".join(body)
    table = f"<thead><tr>{head}</tr></thead><tbody>{rows_text}</tbody>"
    return f'<div class="wide"><table class="numbers">{table}</table></div>{note}'


def _averaged(frame: pd.DataFrame, keys: Sequence[str]) -> str:
    most = int(frame.groupby(list(keys), dropna=False).size().max())
    return f"<p>Each row is the mean over {most} seeds.</p>" if most > 1 else ""


_COMPARED = {
    "token_hit_rate": "Token hit rate",
    FOUND_RATE: "With tiers",
    "ttft_s.p50": "TTFT p50",
    "ttft_s.p99": "TTFT p99",
    "tpot_s.p50": "TPOT p50",
    "goodput": "Goodput",
}


def _differences(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    table = comparison.table[comparison.table["scope"] == "all"]
    known = set(table[table["difference"].notna()]["figure"])
    if not comparison.table["scope"].str.startswith("tier ").any():
        known.discard(FOUND_RATE)  # it is the token hit rate
    figures = [name for name in _COMPARED if name in known]
    names = ("Run", *(_COMPARED[name] for name in figures))
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = []
    for case in comparison.cases:
        rows = {row["figure"]: row for row in table[table["case"] == case].to_dict("records")}
        cells = "".join(f"<td>{_text(_cell(rows.get(name)))}</td>" for name in figures)
        body.append(f"<tr><td>{_text(case)}</td>{cells}</tr>")
    notes = "".join(f"<p>{_text(note)}</p>" for note in comparison.notes)
    return (
        f"<p>Differences from {_text(comparison.reference)}, with 95% intervals over "
        f"{_text(_basis(table))}:</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody>'
        f"</table></div>{notes}"
    )


def _basis(table: pd.DataFrame) -> str:
    known = set(table["basis"].dropna())
    if known == {"seeds"}:
        return "seeds, paired"
    return "stretches of the workload, the same in both runs"


def _cell(row: Mapping[Any, Any] | None) -> str:
    if row is None or not exists(row["difference"]):
        return NO_FIGURE
    return difference_text(row)


# --- plots ---


def _figures(runs: Runs, ceiling: float | None, left_out: list[str]) -> Iterator[str]:
    """Every plot that these runs can give; what they cannot give is noted."""
    for plot in (*_sweep_plots(runs, ceiling), *_run_plots(runs)):
        made = _tried(plot.caption.split(":")[0], left_out, partial(_drawn, plot))
        if made is not None:
            yield made


@dataclass(frozen=True)
class _Plot:
    """A plot to be made: what to call on new axes, its caption, and how many axes."""

    draw: Callable[..., object]
    caption: str
    num_axes: int = 1


def _sweep_plots(runs: Runs, ceiling: float | None) -> Iterator[_Plot]:
    from kvsim import plots

    others = findings.other_axes(runs.axes)
    objective = runs.scenario.objective
    limit_s = objective.ttft_s if objective else None
    for axis in others:
        frame = labelled(runs.frame, [other for other in others if other != axis])
        if runs.frame[axis].nunique() < 2:
            continue
        if axis in findings.CAPACITY_AXES:
            yield _Plot(
                lambda ax, f=frame, a=axis: plots.hit_rate_by_capacity(
                    f, capacity=a, ceiling=ceiling, ax=ax
                ),
                "Hit rate against capacity: rings mark the smallest capacity tried with "
                f"{findings.KNEE_SHARE:.0%} of the best of its line.",
            )
        elif axis in findings.RATE_AXES:
            rate = findings.RATE_AXES[axis]
            yield _Plot(
                lambda ax, f=frame, r=rate: plots.ttft_by_rate(
                    f, rate=r, objective_s=limit_s, ax=ax
                ),
                "TTFT against request rate: thick lines p99, thin lines p50.",
            )
    table_axes = [axis for axis in runs.axes if runs.frame[axis].nunique(dropna=False) > 1]
    if len(table_axes) == 2 and runs.frame["variant"].nunique() == 1:
        x, y = table_axes
        if x in POLICY_KEYS:
            x, y = y, x
        yield _Plot(
            lambda ax: plots.heat_map(runs.frame, x, y, ax=ax),
            f"Token hit rate over {x} and {y}.",
        )


def _run_plots(runs: Runs) -> Iterator[_Plot]:
    from kvsim import plots
    from kvsim.study.probe import is_probe, read_probe

    results = runs.results
    if not findings.other_axes(runs.axes) and runs.frame["label"].nunique() > 1:
        means = mean_rows(runs.frame)
        yield _Plot(
            lambda axes: plots.policies_side_by_side(means, axes=axes),
            "Policies side by side: hit rate, TTFT, and what leaves the cache.",
            3,
        )
    if not results:
        return
    if all(is_probe(result) for result in results.values()):
        yield _Plot(
            lambda axes: plots.retention_tradeoff(read_probe(results), axes=axes),
            "Retention trade-off: what each policy keeps of many sessions, and of one.",
            4,
        )
    objective = runs.scenario.objective
    limit_s = objective.ttft_s if objective else None
    yield _Plot(
        lambda ax: plots.ttft_distribution(results, objective_s=limit_s, ax=ax),
        "TTFT: share of requests whose first token came within a time.",
    )
    yield _Plot(
        lambda ax: plots.prefix_survival(results, _reuse(runs), ax=ax),
        "Survival of a prefix: share of what could be reused that was found, by its idle time.",
    )
    for label in _shown_alone(runs):
        result = results[label]
        yield _Plot(
            lambda ax, r=result, n=label: plots.pool_by_state(r, name=n, ax=ax),
            f"{label}, pool by state: blocks in use, free but cached, and blank.",
        )
        yield _Plot(
            lambda ax, r=result, n=label: plots.pool_by_group(r, name=n, ax=ax),
            f"{label}, pool by KV cache group: which group's blocks are cached.",
        )
        if result.summary["evicted_blocks"]:
            yield _Plot(
                lambda ax, r=result, n=label: plots.evictions(r, name=n, ax=ax),
                f"{label}, what evicted what: cached blocks lost, by the group that took them.",
            )
    if any(result.summary.get("tiers") for result in results.values()):
        yield _Plot(
            lambda ax: plots.bytes_by_tier(results, ax=ax),
            "Bytes by tier: stored and loaded.",
        )
        for label in _shown_alone(runs):
            if not results[label].summary.get("tiers"):
                continue
            result = results[label]
            yield _Plot(
                lambda ax, r=result, n=label: plots.link_utilization(r, name=n, ax=ax),
                f"{label}, link utilization over time.",
            )


def _shown_alone(runs: Runs) -> list[str]:
    """The runs worth a look of their own: the first, as what is compared with, and the best."""
    labels = list(runs.results)
    return list(dict.fromkeys([labels[0], findings.best_label(runs.frame)]))


def _drawn(plot: _Plot) -> str:
    """A plot as a figure of the page, its SVG inside."""
    from kvsim.plots.layout import figure_of
    from kvsim.plots.style import svg_text

    svg = svg_text(figure_of(plot.draw, plot.num_axes))
    picture = base64.b64encode(svg.encode()).decode()
    caption = _text(plot.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _tried(what: str, left_out: list[str], make: Callable[[], Any]) -> Any:
    """What is made, or None with the reason noted: a report is worth having without it."""
    try:
        return make()
    except KvsimError as error:
        left_out.append(f"{what}: left out. {' '.join(str(error).split())}")
        return None


# --- what lies behind ---


def _comparison(runs: Runs) -> Comparison | None:
    """The best run with the others, where they are few enough to read."""
    if len(runs.results) < 2 or findings.other_axes(runs.axes):
        return None
    from kvsim.study.comparison import compare

    best = findings.best_label(runs.frame)
    named = [replace(result, variant=label) for label, result in runs.results.items()]
    return compare(*sorted(named, key=lambda result: result.variant != best))


def _ceiling(runs: Runs) -> float | None:
    from kvsim.study.reuse import ceiling

    return ceiling(runs.scenario)


def _reuse(runs: Runs) -> pd.DataFrame:
    from kvsim.study.reuse import reuse

    return reuse(runs.scenario)


def _assumptions(runs: Runs, left_out: Iterable[str]) -> str:
    from kvsim.scenario.description import describe

    notes: list[str] = []
    text = _tried("Set-up in words", notes, lambda: describe({"": runs.scenario}))
    parts = [
        "<p>What follows from the set-up, with the source or the reason of each number"
        f"{' (of the first run)' if len(runs.frame) > 1 else ''}:</p>",
        f"<pre>{_text(text or ' '.join(notes))}</pre>",
        "<p>Not modelled, or not shown by these runs:</p>",
        _list(NOT_MODELLED),
    ]
    missing = [*left_out, *(f"Failed runs: {message}" for message in runs.failures)]
    if missing:
        parts += ["<p>Left out of this report:</p>", _list(missing)]
    return "".join(parts)


def _reproduce(runs: Runs) -> str:
    origin = runs.provenance
    command = origin.get("command") or "(run from Python)"
    versions = origin.get("versions", {})
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    inputs = origin.get("inputs_sha256", {})
    lines = [command, f"kvsim report {shlex.quote(runs.path.name)}"]
    rows = [f"Versions: {shown} on {origin.get('platform', 'unknown')}."]
    rows += [f"{name}: SHA-256 {digest}." for name, digest in inputs.items()]
    rows.append(f"Scenario as resolved: SHA-256 {origin.get('scenario_sha256', 'unknown')}.")
    rows.append("The same scenario and seed give the same results.")
    # Where files lie here says nothing elsewhere; their hashes do.
    text = shareable_yaml(runs.scenario)
    return (
        f"<pre>{_text(chr(10).join(lines))}</pre>{_list(rows)}"
        "<p>Scenario of the first run, every key spelled out; a trace lies beside it:</p>"
        f"<pre>{_text(text)}</pre>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _list(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(sentence)}</li>' for sentence in sentences)}</ul>"


def _text(value: str) -> str:
    return html.escape(value)
