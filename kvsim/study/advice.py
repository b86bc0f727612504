"""What to set: orders, retentions and tiers tried on a scenario's own workload, and what they gain.

The field is halved on short stretches, the beginnings of the workload: on the first each setting
changes one thing, on the second the best are put together. What is left runs on the whole, and is
judged on requests that it was not chosen on: of other seeds where the workload is drawn, else those
behind the stretches. The best of many on the requests it was chosen by looks better than it is.
Halving: Jamieson and Talwalkar, "Non-stochastic best arm identification", AISTATS 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, Problems
from kvsim.scenario import Scenario, SyntheticWorkload
from kvsim.study.advice_field import (
    AS_SET,
    KEEP,
    ORDER,
    TIER,
    Candidate,
    as_set,
    combinations,
    single_changes,
    sizes,
    stretch,
    with_candidates,
    with_variants,
)
from kvsim.study.advice_gains import Gain, found_rate, gain_of
from kvsim.study.ceilings import ceilings

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.study.sweeps import Progress

SHARES = (0.25, 0.5)
"""How much of the workload the stretches are."""
MOST_OF_A_PART = 3
"""Settings of one part that are put together with those of others."""
MOST_FINALISTS = 3
"""Settings that run on the whole workload, beside what is set and the best of the engine's own."""
_EVICTS_ENOUGH = 0.25  # evictions on a stretch, of what an even spread over the workload gives


@dataclass(frozen=True)
class Tried:
    """What came of a setting in a round.

    Attributes:
        round: its directory: ``as-set``, ``stretch 1/4``, ``stretch 1/2``, ``whole``, ``sizes``; a
            stretch ``alone`` or ``single`` where one runs twice, ``all 1``, ``all 2`` of a script.
        label: the setting.
        found_rate: share of prompt tokens found on the device or in its tier; None where it failed.
        gain: that less the same of what is set.
        message: why it failed.
    """

    round: str
    label: str
    found_rate: float | None
    gain: float | None
    message: str = ""


@dataclass(frozen=True)
class Advice:
    """What came out.

    Attributes:
        scenario: what was asked about, without variants.
        set_to: label of the setting that is advised; ``as-set`` where nothing is better.
        keys: what it sets, by dotted key.
        gains: of those on the whole workload against what is set, the advised one first.
        ties: labels that nothing tells from the advised one.
        engine_best: label of the best that an engine as it is has all of; ``as-set`` if none.
        judged_on: what the gains rest on, in words.
        ceiling: of the run as set, `infinite` and `optimum`, see `kvsim.study.ceilings`.
        tried: every setting in every round.
        sizes: found rate by size of the tier, of the advised setting.
        notes: sentences that qualify it.
    """

    scenario: Scenario
    set_to: str
    keys: Mapping[str, Any]
    gains: Sequence[Gain]
    ties: Sequence[str]
    engine_best: str
    judged_on: str
    ceiling: Mapping[str, float | None]
    tried: Sequence[Tried]
    sizes: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def gain(self, label: str) -> Gain:
        """What one setting gains."""
        return next(one for one in self.gains if one.label == label)


class _Rounds:
    """Runs rounds in a directory of their own each, and notes what was tried."""

    def __init__(self, work: Path, jobs: int | None, told: Callable[[str, Progress], None]) -> None:
        self._work, self._jobs, self._told = work, jobs, told
        self.tried: list[Tried] = []
        self.notes: list[str] = []

    def run(
        self, name: str, scenario: Scenario, seeds: Sequence[int]
    ) -> dict[str, dict[int, RunResult]]:
        """The runs of a scenario's variants, by label and seed; what failed is left out."""
        from kvsim.study.sweep_table import DONE
        from kvsim.study.sweeps import sweep

        data = scenario.written()
        data["sweep"] = {"seeds": list(seeds)}
        made = Scenario.from_data(data, f"scenario {scenario.name}", scenario.directory)
        done = sweep(
            made,
            self._work / name.replace("/", "-of-").replace(" ", "-"),
            jobs=self._jobs,
            on_progress=lambda progress: self._told(name, progress),
        )
        runs: dict[str, dict[int, RunResult]] = {}
        for row in done.table.to_dict("records"):
            label = str(row["variant"])
            if row["status"] == DONE:
                runs.setdefault(label, {})[int(row["seed"])] = done.result(str(row["run"]))
            else:
                self.tried.append(Tried(name, label, None, None, str(row["message"])))
        if AS_SET not in runs:
            why = next((one.message for one in self.tried if one.label == AS_SET), "")
            raise KvsimError(f"scenario {scenario.name}: it fails as it is set: {why}")
        return runs

    def score(
        self, name: str, runs: Mapping[str, Mapping[int, RunResult]]
    ) -> dict[str, float | None]:
        """The found rate of each, over all its seeds together; noted down."""
        rates = {label: found_rate(list(by_seed.values())) for label, by_seed in runs.items()}
        base = rates[AS_SET]
        for label, rate in rates.items():
            gain = None if rate is None or base is None else rate - base
            self.tried.append(Tried(name, label, rate, gain))
        return rates


def advise(
    scenario: Scenario,
    work: Path,
    *,
    num_seeds: int = 4,
    jobs: int | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> Advice:
    """Try settings on a scenario's workload, and say which to use.

    Args:
        scenario: without variants.
        work: directory of the runs; those that are there already are not run again.
        num_seeds: seeds that the last are judged on, where the workload is drawn.
        jobs: simulations at once; None is all cores.
        on_progress: told the round and how far it is.

    Raises:
        KvsimError: nothing can be found again in this scenario, or it cannot be run.
    """
    if not scenario.cache.enable_prefix_caching:
        problem = "cache.enable_prefix_caching: false finds nothing again. Set it to true first."
        raise Problems(f"scenario {scenario.name}", [problem])
    rounds = _Rounds(work, jobs, on_progress or (lambda name, progress: None))
    drawn = isinstance(scenario.workload, SyntheticWorkload)
    seed = scenario.seed
    first = as_set(scenario)
    base = rounds.run("as-set", with_candidates(scenario, [first]), [seed])[AS_SET][seed]
    singles = single_changes(scenario)
    if base.summary["evicted_blocks"] == 0:
        rounds.notes.append(
            "Nothing is evicted as it is set, so no order of eviction can change anything: none "
            "was tried."
        )
        singles = [one for one in singles if ORDER not in one.parts]
    chosen_on: RunResult | None = None
    short = _stretches(scenario, base, rounds)
    field_now, candidates = [first, *singles], {one.label: one for one in [first, *singles]}
    scores: dict[str, float | None] = {}
    for number, (name, part) in enumerate(short):
        if number == 1:
            field_now = _put_together(scenario, first, singles, scores)
            candidates |= {one.label: one for one in field_now}
        runs = rounds.run(name, with_candidates(part, field_now), [seed])
        scores = rounds.score(name, runs)
        chosen_on = runs[AS_SET][seed]
    ranked = _ranked(scores)
    last = ranked[:MOST_FINALISTS]
    engine = next((label for label in ranked if candidates[label].is_engine), None)
    if engine is not None and engine not in last:
        last.append(engine)
    finalists = [first, *(candidates[label] for label in last)]
    seeds = [seed + 1 + number for number in range(num_seeds)] if drawn else [seed]
    runs = rounds.run("whole", with_candidates(scenario, finalists), seeds)
    rounds.score("whole", runs)
    whole_is_known = short[-1][1] is scenario
    known = None if drawn or whole_is_known or chosen_on is None else chosen_on.requests
    gains = {
        label: gain_of(label, by_seed, runs[AS_SET], known)
        for label, by_seed in runs.items()
        if label != AS_SET and by_seed.keys() & runs[AS_SET].keys()
    }
    return _advice(scenario, base, candidates, runs, gains, rounds, drawn, known)


def _stretches(scenario: Scenario, base: RunResult, rounds: _Rounds) -> list[tuple[str, Scenario]]:
    """Rounds on short stretches: two, the first left as long as the second if it evicts little."""
    num = len(base.requests)
    short = [(f"stretch {_fraction(at)}", stretch(scenario, at, num), at) for at in SHARES]
    made = [(name, part, at) for name, part, at in short if part is not None]
    if not made:
        rounds.notes.append(
            "The workload is a script, which has no shorter stretch: what is judged was chosen on "
            "the same requests."
        )
        return [("all 1", scenario), ("all 2", scenario)]
    name, part, share = made[0]
    alone = with_candidates(part, [as_set(scenario)])
    tried = rounds.run(f"{name} alone", alone, [scenario.seed])[AS_SET][scenario.seed]
    even = share * base.summary["evicted_blocks"]
    if tried.summary["evicted_blocks"] < _EVICTS_ENOUGH * even:
        rounds.notes.append(
            f"The first {share:.0%} of the workload evicts little, so the field was halved on the "
            f"first {made[1][2]:.0%} both times."
        )
        return [(f"{made[1][0]} single", made[1][1]), (made[1][0], made[1][1])]
    return [(name, part) for name, part, _ in made]


def _fraction(share: float) -> str:
    return f"1/{round(1 / share)}"


def _ranked(scores: Mapping[str, float | None]) -> list[str]:
    """Labels by found rate, best first, without what is set and without what equals it or another.

    Of equal ones the first in the field stays: the engine's own before others.
    """
    seen = {scores[AS_SET]}
    ranked = []
    known = [(rate, label) for label, rate in scores.items() if rate is not None]
    for rate, label in sorted(known, key=lambda one: -one[0]):
        if rate not in seen:
            ranked.append(label)
            seen.add(rate)
    return ranked


def _put_together(
    scenario: Scenario,
    first: Candidate,
    singles: Sequence[Candidate],
    scores: Mapping[str, float | None],
) -> list[Candidate]:
    """The field of the second round: the best of each part with one another."""
    ranked = _ranked(scores)
    field_now: dict[str, Candidate] = {first.label: first}
    for is_engine, most in ((True, 2), (False, MOST_OF_A_PART)):
        parts = {}
        for part in (ORDER, KEEP, TIER):
            of_part = [one for one in singles if set(one.parts) == {part}]
            if is_engine:
                of_part = [one for one in of_part if one.is_engine]
            best = sorted(of_part, key=lambda one: _place(one.label, ranked))
            parts[part] = [one for one in best if one.label in ranked][:most]
        field_now |= {one.label: one for one in combinations(scenario, parts)}
    return list(field_now.values())


def _place(label: str, ranked: Sequence[str]) -> int:
    return ranked.index(label) if label in ranked else len(ranked)


def _advice(
    scenario: Scenario,
    base: RunResult,
    candidates: Mapping[str, Candidate],
    runs: Mapping[str, Mapping[int, RunResult]],
    gains: Mapping[str, Gain],
    rounds: _Rounds,
    drawn: bool,
    known: pd.DataFrame | None,
) -> Advice:
    """Choose among what ran on the whole, by gains that are beyond their noise."""

    def beats(label: str, other: str) -> bool:
        ours, theirs = runs[label], runs[other]
        if not ours.keys() & theirs.keys():
            return False
        return gain_of(label, ours, theirs, known).is_better

    better = [one for one in gains.values() if one.is_better]
    best = max(better, key=lambda one: one.gain, default=None)
    ties: list[str] = []
    if best is not None:
        ties = [label for label in gains if label != best.label and not beats(best.label, label)]
        own = [
            gains[label] for label in ties if candidates[label].is_engine and gains[label].is_better
        ]
        if own and not candidates[best.label].is_engine:
            # What an engine has as it is, before what it would have to be given.
            most = max(own, key=lambda one: one.gain)
            ties = [best.label, *(label for label in ties if label != most.label)]
            best = most
    label = AS_SET if best is None else best.label
    if best is None:
        ties = [one.label for one in gains.values() if not one.is_worse]
    engine = [one for one in gains.values() if candidates[one.label].is_engine and one.is_better]
    engine_best = max(engine, key=lambda one: one.gain).label if engine else AS_SET
    order = sorted(gains.values(), key=lambda one: (one.label != label, -one.gain))
    notes = [*rounds.notes, *_cut(rounds.tried), *_worse_elsewhere(best)]
    other: dict[str, float | None] = {}
    if changes := sizes(scenario):
        keys = candidates[label].keys
        variants = {AS_SET: {}, **{name: {**keys, **size} for name, size in changes.items()}}
        by_size = rounds.run("sizes", with_variants(scenario, variants), [scenario.seed])
        other = {name: found_rate(list(of.values())) for name, of in by_size.items()}
    if drawn:
        words = f"{len(runs[AS_SET])} seeds that nothing was chosen on"
    elif known is not None:
        words = f"the {order[0].num_requests if order else 0:,} requests behind the stretches"
    else:
        words = "the same requests that it was chosen on"
    return Advice(
        scenario,
        label,
        candidates[label].keys,
        order,
        ties,
        engine_best,
        words,
        ceilings(scenario, base.requests, base.summary["num_blocks"]),
        rounds.tried,
        other,
        notes,
    )


def _cut(tried: Iterable[Tried]) -> list[str]:
    """What failed, in words."""
    failed: dict[str, list[str]] = {}
    for one in tried:
        if one.message:
            failed.setdefault(one.message, []).append(one.label)
    return [f"{', '.join(dict.fromkeys(who))} failed: {why}" for why, who in failed.items()]


def _worse_elsewhere(best: Gain | None) -> list[str]:
    """Where what is advised costs something."""
    if best is None:
        return []
    notes = []
    for name, (before, after) in best.classes.items():
        if before is not None and after is not None and after < before - 0.005:
            notes.append(
                f"It costs {name}: {before:.1%} of their tokens are found, then {after:.1%}."
            )
    before, after = best.ttft_p99_s
    if before is not None and after is not None and after > 1.05 * before:
        notes.append(f"TTFT p99 grows from {before:.3g} s to {after:.3g} s.")
    if best.num_refused[1] > best.num_refused[0]:
        notes.append(f"{best.num_refused[1]} requests are refused, {best.num_refused[0]} before.")
    return notes
