"""What the report says in words: the question, the answer, the set-up, what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError
from kvsim.report.fleets import machines, setup_rows, what_is_chosen, with_choice
from kvsim.report.markup import bullets, safe
from kvsim.results.tables import NO_FIGURE, percent, seconds, short
from kvsim.scenario.policies import setting_name
from kvsim.study import findings
from kvsim.study.fleet_findings import baseline, choices, fleet_findings, has_fleets
from kvsim.study.misses import miss_findings
from kvsim.study.runs import Runs, labelled

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Scenario
    from kvsim.study.comparison import Comparison
    from kvsim.study.ranking import Ranking

NOT_MODELLED = (
    "Of fleets, the network between clients, routers and nodes, but for the age of what routers "
    "see.",
    "Step times are a model, not a measurement: TTFT and TPOT carry its error, hit rates only so "
    "far as timing changes what is cached.",
    "Tokenisation, the network to the client, and the engine's own start-up are left out.",
    "Traffic other than this workload's: another day, other users or longer contexts may rank "
    "policies differently.",
)
"""What no run shows, for every report."""
_MOST_AS_KEYS = 3


def origin(runs: Runs) -> str:
    """What the report is made of and when it was run, in a line."""
    versions = runs.provenance.get("versions", {})
    started = str(runs.provenance.get("started", ""))[:10]
    count = "1 run" if len(runs.frame) == 1 else f"{len(runs.frame)} runs"
    failed = f", {len(runs.failures)} kinds of failure" if runs.failures else ""
    return f"kvsim {versions.get('kvsim') or ''} report on {count}{failed}, run {started}".strip()


def question(runs: Runs) -> str:
    """The question that was asked, from what varies."""
    where = f"{_model(runs.scenario)} on {machines(runs.scenario)}"
    policies = runs.frame["policy"].nunique() > 1
    others = findings.other_axes(runs.axes)
    if baseline(runs) is not None:
        return f"What does a fleet lose as nodes come and go: {where}, {_workload(runs.scenario)}?"
    if runs.fleet_keys:
        verb = "vary" if len(others) > 1 else "varies"
        beside = f", as {', '.join(others)} {verb}," if others else ""
        return (
            f"Which of the {what_is_chosen(runs)} serves {_workload(runs.scenario)} best"
            f"{beside} with {where}?"
        )
    varied = [*(["cache policies"] if policies else []), *others]
    if not varied:
        return f"How does {where} serve {_workload(runs.scenario)}?"
    what = "Which of the cache policies" if policies else f"Which {', '.join(others)}"
    verb = "vary" if len(others) > 1 else "varies"
    beside = f", as {', '.join(others)} {verb}," if policies and others else ""
    return f"{what} serves {_workload(runs.scenario)} best{beside} with {where}?"


def _model(scenario: Scenario) -> str:
    return scenario.model if isinstance(scenario.model, str) else "a custom model"


def _workload(scenario: Scenario) -> str:
    workload = scenario.workload
    path = getattr(workload, "path", None)
    return f"the trace {Path(path).name}" if path else f"its {workload.kind} workload"


def findings_of(
    runs: Runs, ranking: Ranking | None, comparison: Comparison | None, ceiling: float | None
) -> list[str]:
    """All that the runs say, what matters most first."""
    said: list[str] = []
    others = findings.other_axes(runs.axes)
    if baseline(runs) is not None:
        said += fleet_findings(runs)
    elif ranking is not None and runs.fleet_keys:
        said += findings.policy_findings(with_choice(choices(runs)), ranking, comparison)
    elif ranking is not None:
        said += findings.policy_findings(runs.frame, ranking, comparison)
        said += _as_keys(runs, ranking)
    elif others and (runs.fleet_keys or runs.frame["policy"].nunique() > 1):
        said += findings.point_findings(runs.frame, others, runs.noise)
    for axis in others:
        frame = labelled(runs.frame, [other for other in others if other != axis])
        if axis in findings.CAPACITY_AXES:
            said += findings.capacity_findings(frame, axis, ceiling)
        elif axis in findings.RATE_AXES:
            said += findings.rate_findings(frame, findings.RATE_AXES[axis])
    said += fleet_findings(runs) if baseline(runs) is None else []
    said += findings.ceiling_findings(runs.frame)
    said += findings.tier_findings(labelled(runs.frame, others))
    said += miss_findings(labelled(runs.frame, others))
    if len(runs.frame) == 1:
        said.insert(0, "One configuration was run, so there is nothing to choose between.")
    return said


def recommendation(runs: Runs, said: Sequence[str], *, noise_known: bool) -> str:
    """The first sentences, and what stands against them."""
    told = (result.summary.get("step_times") or {} for result in runs.results.values())
    says = dict.fromkeys(text for step_times in told if (text := step_times.get("says")))
    cautions = [*findings.cautions(runs.frame, runs.warnings), *says]
    if not noise_known:
        cautions.append("Differences have no interval here, so small ones may be chance.")
    return (
        f'<div class="recommendation">{bullets(said)}</div>'
        f"<p>What stands against taking this at face value:</p>{bullets(cautions)}"
    )


def _as_keys(runs: Runs, ranking: Ranking) -> list[str]:
    """The best policies as keys of a scenario, and what a single one gives away at windows."""
    if not ranking.has_winner:
        return []
    said = []
    for label in ranking.best[:_MOST_AS_KEYS]:
        scenario = runs.results[label].scenario if label in runs.results else None
        if scenario is not None:
            kept = scenario.retention_interval
            interval = "null" if kept is None else str(kept)
            keeps = f"cache.retention_interval: {interval}"
            if scenario.cache.retention is not None:
                keeps = f"cache.retention: {setting_name(scenario.cache.retention)}"
            order = setting_name(scenario.free_queue_setting)
            said.append(f"{label} is cache.free_queue: {order}, {keeps}")
    sentences = [f"As keys of a scenario: {'; '.join(said)}."] if said else []
    if len(ranking.best) == 1 and said:
        lost = findings.window_loss(runs.results[ranking.leader].requests)
        sentences.append(
            f"With it, {percent(lost)} of prompt tokens were still held by full attention but not "
            "found, because a window or state group had kept nothing there."
        )
    return sentences


def setup(runs: Runs, ceiling: float | None) -> str:
    """The set-up as a table."""
    scenario = runs.scenario
    first = runs.frame.iloc[0]
    asked = int(first["num_requests"] + first["num_refused"])
    rows = {
        "Model": _model(scenario),
        "Node": machines(scenario)
        if has_fleets(runs)
        else f"{machines(scenario)}, tensor parallel {scenario.num_ranks}",
        **setup_rows(runs),
        "Block pool": f"{_range(runs.frame['num_blocks'])} blocks",
        "Engine": f"{scenario.engine.profile}, {scenario.max_num_batched_tokens:,} tokens a "
        f"step, {scenario.max_num_seqs} sequences, up to {scenario.max_model_len:,} tokens",
        "Policies": "; ".join(dict.fromkeys(str(policy) for policy in runs.frame["policy"])),
        "Workload": f"{_workload(scenario)}: {asked:,} requests, "
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
        f"<tr><th>{safe(name)}</th><td>{safe(value)}</td></tr>"
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


def assumptions(runs: Runs, left_out: Iterable[str]) -> str:
    """What follows from the set-up, what is not modelled, and what was left out."""
    from kvsim.scenario.description import describe

    try:
        text = describe({"": runs.scenario})
    except KvsimError as error:
        text = f"Set-up in words: left out. {' '.join(str(error).split())}"
    parts = [
        "<p>What follows from the set-up, with the source or the reason of each number"
        f"{' (of the first run)' if len(runs.frame) > 1 else ''}:</p>",
        f"<pre>{safe(text)}</pre>",
        "<p>Not modelled, or not shown by these runs:</p>",
        bullets(NOT_MODELLED),
    ]
    missing = [*left_out, *(f"Failed runs: {message}" for message in runs.failures)]
    if missing:
        parts += ["<p>Left out of this report:</p>", bullets(missing)]
    return "".join(parts)
