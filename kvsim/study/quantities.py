"""What a search varies: a load or a number of a scenario, by name, and what each value changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kvsim.errors import KvsimError, show, unknown_name
from kvsim.scenario import CpuOffload, Scenario, ScriptWorkload, SyntheticWorkload, TraceWorkload
from kvsim.scenario.draws import START_FORMS, Draw, parse_starts
from kvsim.scenario.offload import DiskTier, MooncakeOffload, OwnLink, link_spec
from kvsim.scenario.validation import Section, sections_in
from kvsim.study.fleet_quantities import (
    NODES,
    NODES_MAX,
    is_nodes,
    router_parameters,
    start_of_nodes,
)

REQUEST_RATE = "request_rate"
"""Quantity: requests a second, by scaling the times of a trace or the rate sessions start at."""
CONCURRENCY = "concurrency"
"""Quantity: sessions alive at once, instead of any start times the workload has."""
CONCURRENCY_TRIED_FIRST = 8
"""Where a search for a concurrency begins if the workload has none."""
_EXAMPLES = (REQUEST_RATE, CONCURRENCY, "node.num_blocks", "workload.time_scale")
_RATES = ("per_s", "mean_per_s", "from_per_s", "to_per_s")  # arguments of starts that are rates


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is varied.

    Attributes:
        name: as it was asked for.
        overrides: from a value to dotted keys.
        start: the value that the scenario has, or one to try first; None where there is neither.
        whole: whether only whole numbers are possible.
        most: the largest value possible; None for any.
        notes: sentences for people about what a value means.
    """

    name: str
    overrides: Callable[[float], dict[str, Any]]
    start: float | None
    whole: bool = False
    most: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_load(self) -> bool:
        """Whether it says how much is asked of a node, so that an answer has to last."""
        of_all = self.name in (REQUEST_RATE, CONCURRENCY) or self.name.startswith("workload.")
        return of_all or is_nodes(self.name)

    def rounded(self, value: float) -> float:
        """The value nearest to it that is possible."""
        possible = float(max(1, round(value))) if self.whole else value
        return possible if self.most is None else min(possible, self.most)


def value_text(value: float) -> str:
    """A value for people: whole numbers, and sizes, with all their digits."""
    whole = float(value).is_integer() or value >= 1e6
    return f"{value:,.0f}" if whole else f"{value:,.6g}"


def quantity(scenario: Scenario, name: str) -> Quantity:
    """What a name means in a scenario.

    Args:
        scenario: one without variants.
        name: `request_rate`, `concurrency`, a dotted key of a number, or ``key=text`` with ``{}``
            in the text.

    Raises:
        KvsimError: it means nothing there, or the workload, which a rate is counted from, is wrong.
    """
    if name == REQUEST_RATE:
        return _request_rate(scenario)
    if name == CONCURRENCY:
        return _concurrency(scenario)
    if "=" in name:
        return _within_text(scenario, name)
    return _number(scenario, name)


def _number(scenario: Scenario, key: str) -> Quantity:
    if key.endswith(".link.bandwidth") and (found := _bandwidth(scenario, key)):
        return found
    if key == NODES:
        start = start_of_nodes(scenario)
        return Quantity(key, lambda value: {key: round(value)}, start, True, NODES_MAX)
    section, last = router_parameters(scenario, key) or _section_of(scenario, key)
    fields = type(section).model_fields
    if last in {"name", "seed", "variants", "sweep"} or last not in fields:
        known = [f"{key.rpartition('.')[0]}.{other}".strip(".") for other in fields]
        raise KvsimError(f"quantity: {unknown_name('key', key, known)}")
    field = fields[last]
    kinds = _plain_types(field.annotation)
    if not kinds & {int, float}:
        raise KvsimError(f"quantity: {key} is no number. Vary one that is, as node.num_blocks.")
    if key == "offload.capacity" and getattr(section, "num_chunks", None) is not None:
        raise KvsimError(
            "quantity: offload.capacity: offload.num_chunks is set, so the capacity has no effect. "
            "Vary offload.num_chunks."
        )
    whole = float not in kinds
    has = getattr(section, last)
    if has is None:
        has = _following(scenario, section, last)
    is_number = isinstance(has, int | float) and not isinstance(has, bool) and has > 0
    return Quantity(
        key,
        lambda value: {key: round(value) if whole else value},
        float(has) if is_number else None,
        whole,
        NODES_MAX if is_nodes(key) else _most(field.annotation, field.metadata),
    )


def _following(scenario: Scenario, section: BaseModel, last: str) -> float | None:
    """The value that follows from other keys where null is written."""
    if last == "num_blocks":
        from kvsim.scenario.keys import derive_blocks

        return derive_blocks(scenario).num_blocks
    if last in ("max_num_seqs", "max_num_batched_tokens"):
        return float(getattr(scenario, last))
    if isinstance(section, CpuOffload) and last == "num_chunks":
        from kvsim.policies.chunks import chunk_bytes, num_chunks_in

        width = scenario.tier_block_sizes.pool_bytes
        return num_chunks_in(section.capacity, chunk_bytes(width, section.blocks_per_chunk, 1))
    if isinstance(section, CpuOffload | MooncakeOffload | DiskTier) and last == "link_efficiency":
        return link_spec(section.link).efficiency
    return None


def _bandwidth(scenario: Scenario, key: str) -> Quantity | None:
    """The bandwidth of a link of the catalog, whose other figures stay; None for one's own."""
    place = key.removesuffix(".bandwidth")
    tier, last = _section_of(scenario, place)
    link = getattr(tier, last, None)
    if not isinstance(link, str):
        return None
    spec = link_spec(link)
    if spec.store_bytes_per_s != spec.load_bytes_per_s:
        raise KvsimError(
            f"quantity: {key}: {link} has another bandwidth out than in. Vary {place}_efficiency, "
            "which scales both."
        )
    names = set(OwnLink.model_fields) - {"bandwidth"}
    others = {name: getattr(spec, name) for name in sorted(names)}
    return Quantity(
        key, lambda value: {place: {"bandwidth": value, **others}}, spec.store_bytes_per_s
    )


def _within_text(scenario: Scenario, name: str) -> Quantity:
    """A number within a text, as in ``workload.sessions.starts=poisson(per_s={})``."""
    key, _, template = name.partition("=")
    if template.count("{}") != 1:
        raise KvsimError(
            f"quantity: {show(template)} has no place for the number. Write {{}} where it goes, as "
            "in 'step_time.step_s={} ms'."
        )
    _section_of(scenario, key)
    return Quantity(name, lambda value: {key: template.replace("{}", f"{value:.9g}")}, None)


def _section_of(scenario: Scenario, key: str) -> tuple[Section, str]:
    """The section that holds a dotted key, and the key's last part."""
    *path, last = key.split(".")
    section: Any = scenario
    for depth, step in enumerate(path):
        place, above = ".".join(path[: depth + 1]), section
        if isinstance(section, tuple) and step.isdecimal() and int(step) < len(section):
            section = section[int(step)]
        elif isinstance(section, Section) and step in type(section).model_fields:
            section = getattr(section, step)
        else:
            section = ""
        if section is None:
            inner = sections_in(type(above).model_fields[step].annotation)
            known = [f"{place}.{name}" for one in inner for name in one.model_fields]
            if ".".join([*path, last][: depth + 2]) not in known:
                raise KvsimError(f"quantity: {unknown_name('key', key, known)}")
            raise KvsimError(
                f"quantity: {key}: {place} is null in this scenario. Write it out, or leave out "
                "variants without it (--only)."
            )
        if isinstance(section, str) and step == "link" and hasattr(above, "link_efficiency"):
            raise KvsimError(
                f"quantity: {key}: {place} is {section} of the catalog. Vary {place}.bandwidth or "
                f"{place}_efficiency, or give a link of your own."
            )
        if not isinstance(section, Section | tuple):
            raise KvsimError(f"quantity: {unknown_name('key', key, _EXAMPLES)}")
    if not isinstance(section, Section):
        raise KvsimError(f"quantity: {unknown_name('key', key, _EXAMPLES)}")
    return section, last


def _plain_types(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and annotation is not bool:
        return {annotation}
    return {kind for part in get_args(annotation) for kind in _plain_types(part)}


def _most(annotation: Any, metadata: list[Any]) -> float | None:
    """The largest value that a field takes, as its rule says."""
    for rule in metadata:
        inner = _most(None, rule.metadata) if isinstance(rule, FieldInfo) else None
        most = getattr(rule, "le", None) if inner is None else inner
        if isinstance(most, int | float):
            return float(most)
    if get_origin(annotation) is Annotated:
        inner_type, *rules = get_args(annotation)
        return _most(inner_type, rules)
    found = (_most(part, []) for part in get_args(annotation))
    return next((most for most in found if most is not None), None)


def _concurrency(scenario: Scenario) -> Quantity:
    workload = scenario.workload
    if isinstance(workload, ScriptWorkload):
        raise KvsimError(
            f"quantity: {CONCURRENCY} needs a workload with sessions, of kind trace or synthetic. "
            "A script runs by arrival or one after another."
        )
    if isinstance(workload, TraceWorkload):
        from kvsim.workload.traces import open_trace

        trace = open_trace(workload, scenario.seed)
        if not trace.has_sessions:
            raise KvsimError(
                f"quantity: {CONCURRENCY}: {workload.path} (format {trace.format}) has no sessions "
                f"to keep alive. Vary {REQUEST_RATE}."
            )
    sessions = workload.sessions
    most = workload.num_sessions if isinstance(workload, SyntheticWorkload) else None
    starts: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if sessions is not None and sessions.starts is not None:
        starts = {"workload.sessions.starts": None}
        notes = (
            f"Sessions start as others end, instead of workload.sessions.starts {sessions.starts}.",
        )
    written = None if sessions is None else sessions.concurrency
    return Quantity(
        CONCURRENCY,
        lambda value: {**starts, "workload.sessions.concurrency": round(value)},
        float(written or CONCURRENCY_TRIED_FIRST),
        whole=True,
        most=most,
        notes=notes,
    )


def _request_rate(scenario: Scenario) -> Quantity:
    workload = scenario.workload
    if isinstance(workload, ScriptWorkload):
        raise KvsimError(
            f"quantity: {REQUEST_RATE} needs a workload of kind trace or synthetic, whose times "
            "can be scaled. Vary a key of the workload instead."
        )
    sessions = workload.sessions
    if sessions is None:
        return _rate_of_requests(scenario, workload)
    if sessions.concurrency is not None:
        raise KvsimError(
            f"quantity: {REQUEST_RATE}: {sessions.concurrency} sessions are kept alive at once, so "
            f"there is no rate. Vary {CONCURRENCY}."
        )
    draw = Draw("recorded") if sessions.starts is None else parse_starts(sessions.starts)
    num_requests, starts_s = _counted(scenario)
    per_session = num_requests / len(starts_s)
    if draw.form == "recorded" and isinstance(workload, TraceWorkload):
        return _rate_of_recorded(workload, num_requests, starts_s)
    rate_per_s = _sessions_per_s(draw, len(starts_s))
    if rate_per_s is None:
        raise KvsimError(
            f"quantity: {REQUEST_RATE}: sessions start {draw.form}, which has no rate. Set "
            "workload.sessions.starts to one that has, as poisson(per_s=1)."
        )

    def overrides(value: float) -> dict[str, Any]:
        factor = value / (rate_per_s * per_session)
        return {"workload.sessions.starts": _scaled(draw, factor)}

    at_end = ", at the end of the ramp" if draw.form == "ramp" else ""
    note = (
        f"{REQUEST_RATE} is sessions a second{at_end} (workload.sessions.starts) times "
        f"{per_session:.4g}, the mean number of requests of a session."
    )
    return Quantity(REQUEST_RATE, overrides, rate_per_s * per_session, notes=(note,))


def _rate_of_requests(scenario: Scenario, workload: Any) -> Quantity:
    from kvsim.workload import open_workload

    first_s, last_s, num_later = math.nan, math.nan, -1
    for request in open_workload(workload, scenario.scheduler_block_tokens, scenario.seed).requests:
        first_s = request.arrival_s if num_later < 0 else first_s
        last_s = request.arrival_s
        num_later += 1
    return _time_scaled(workload, num_later, last_s - first_s)


def _rate_of_recorded(
    workload: TraceWorkload, num_requests: int, starts_s: list[float]
) -> Quantity:
    note = (
        f"{REQUEST_RATE} is changed by workload.time_scale, which scales think and tool times as "
        "well as the starts of sessions."
    )
    later = num_requests * (len(starts_s) - 1) / len(starts_s)
    return _time_scaled(workload, later, max(starts_s) - min(starts_s), (note,))


def _time_scaled(
    workload: TraceWorkload, num_later: float, span_s: float, notes: tuple[str, ...] = ()
) -> Quantity:
    if not span_s > 0:
        raise KvsimError(
            f"quantity: {REQUEST_RATE}: all requests of the trace arrive at once, so there is no "
            "rate to scale. Vary another quantity."
        )
    rate_per_s = num_later / span_s
    scale = workload.time_scale * rate_per_s
    return Quantity(
        REQUEST_RATE, lambda value: {"workload.time_scale": scale / value}, rate_per_s, notes=notes
    )


def _counted(scenario: Scenario) -> tuple[int, list[float]]:
    """How many requests the sessions of a workload have, and when each session starts."""
    from kvsim.workload import open_workload

    closed = scenario.replace({"workload.sessions.loop": "closed"}).workload
    opened = open_workload(closed, scenario.scheduler_block_tokens, scenario.seed)
    num_requests, starts_s = 0, []
    for session in opened.sessions or ():
        num_requests += len(session.turns)
        starts_s.append(session.start_s or 0.0)
    return num_requests, starts_s


def _sessions_per_s(draw: Draw, num_sessions: int) -> float | None:
    """The rate at which sessions start; None where they start all at once or as recorded."""
    if draw.form == "uniform":
        span_s = draw.arguments["span_s"]
        return num_sessions / span_s if span_s else None
    rates = [draw.arguments[name] for name in _RATES if name in draw.arguments]
    return rates[-1] if rates else None


def _scaled(draw: Draw, factor: float) -> str:
    """The text of starts that are `factor` times as frequent."""
    changed = dict(draw.arguments)
    for name in changed:
        if name in _RATES:
            changed[name] *= factor
    if draw.form == "uniform":
        changed["span_s"] /= factor
    arguments = ", ".join(f"{name}={changed[name]:.12g}" for name in START_FORMS[draw.form])
    return f"{draw.form}({arguments})"
