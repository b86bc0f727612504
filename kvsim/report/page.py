"""A report of a run or a sweep: one HTML file that needs nothing beside it, fit to be printed.

It only reads results; nothing is simulated. What cannot be drawn from them is left out and named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError
from kvsim.report import words
from kvsim.report.figures import plots_of
from kvsim.report.fleets import fleet_section
from kvsim.report.markup import bullets, safe, section
from kvsim.report.reproduce import reproduce
from kvsim.report.tables import differences_table, results_table
from kvsim.scenario.writing import write_text
from kvsim.study import findings
from kvsim.study.fleet_findings import baseline, rank_fleets
from kvsim.study.ranking import Ranking, rank
from kvsim.study.runs import Runs, read_runs

if TYPE_CHECKING:
    from kvsim.study.comparison import Comparison

MOST_RECOMMENDATIONS = 5
"""Most sentences that the report begins with; what else there is to say comes after the tables."""


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
    ranking = _ranking(runs)
    comparison = _tried("Intervals", left_out, lambda: _comparison(runs, ranking))
    is_choice = baseline(runs) is None
    best = ranking.best if ranking is not None and ranking.has_winner and is_choice else ()
    said = words.findings_of(runs, ranking, comparison, ceiling)
    first, further = said[:MOST_RECOMMENDATIONS], said[MOST_RECOMMENDATIONS:]
    noise_known = ranking is None or ranking.noise_known
    plots = "".join(plots_of(runs, best[0] if best else None, ceiling, left_out))
    name = runs.scenario.name
    told_first = f'<div class="first">{bullets(runs.told_first)}</div>' if runs.told_first else ""
    sections = [
        told_first,
        section("Recommendation", words.recommendation(runs, first, noise_known=noise_known)),
        section("Set-up", words.setup(runs, ceiling)),
        section("Results", results_table(runs, best) + differences_table(comparison)),
        section("Routing and replicas", fleet_section(runs)),
        section("Further findings", bullets(further) if further else ""),
        section("Plots", plots),
        section("Assumptions, and what is not modelled", words.assumptions(runs, left_out)),
        section("How to reproduce this", reproduce(runs)),
    ]
    template = resources.files("kvsim.report").joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        version=__version__,
        title=safe(f"{name}: kvsim report"),
        heading=safe(name),
        origin=safe(words.origin(runs)),
        question=safe(question or words.question(runs)),
        sections="\n".join(part for part in sections if part),
    )


def _tried(what: str, left_out: list[str], make: Callable[[], Any]) -> Any:
    """What is made, or None with the reason noted: a report is worth having without it."""
    try:
        return make()
    except KvsimError as error:
        left_out.append(f"{what}: left out. {' '.join(str(error).split())}")
        return None


def _ranking(runs: Runs) -> Ranking | None:
    """Of the policies, where the runs differ in nothing else; None where they do."""
    if findings.other_axes(runs.axes) or runs.frame["label"].nunique() < 2:
        return None
    return rank_fleets(runs) if runs.fleet_keys else rank(runs.frame, runs.noise(runs.frame))


def _comparison(runs: Runs, ranking: Ranking | None) -> Comparison | None:
    """The best run with the others, where they are few enough to read."""
    if ranking is None or len(runs.results) < 2:
        return None
    from kvsim.study.comparison import compare

    named = [replace(result, variant=label) for label, result in runs.results.items()]
    reference = baseline(runs) or ranking.leader
    return compare(*sorted(named, key=lambda result: result.variant != reference))


def _ceiling(runs: Runs) -> float | None:
    from kvsim.study.reuse import ceiling

    workloads = [r.scenario.workload.model_dump_json() for r in runs.results.values()]
    if len(set(workloads)) > 1 or any(axis.startswith("workload.content") for axis in runs.axes):
        raise KvsimError("The runs have different workloads, each with a ceiling of its own.")
    return ceiling(runs.scenario)
