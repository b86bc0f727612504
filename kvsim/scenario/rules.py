"""What has to hold between the keys of a scenario."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim import catalog
from kvsim.capacity.requests import blocks_of_request, longest_in_pool
from kvsim.errors import KvsimError, Problems, show
from kvsim.policies.chunks import chunk_bytes, interval_problem, num_chunks_in
from kvsim.policies.finding import find_policy
from kvsim.policies.profiles import PROFILES, retention_problem
from kvsim.scenario.fields import TOKENS_MAX
from kvsim.scenario.files import PATH_KEYS, named_files, named_policies
from kvsim.scenario.fleet_rules import fleet_problems
from kvsim.scenario.keys import ScenarioKeys, derive_blocks
from kvsim.scenario.model import CustomModel
from kvsim.scenario.offload import CpuOffload
from kvsim.scenario.pool_rules import pool_problems
from kvsim.scenario.synthetic import SyntheticWorkload
from kvsim.scenario.validation import Problem


def broken(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Every rule between keys that a scenario breaks, whose fields are right each for itself."""
    if scenario.fleet is not None and scenario.fleet.pools is not None:
        yield from pool_problems(scenario, broken)
        return
    if isinstance(scenario.model, CustomModel):
        wrong = list(_custom(scenario.model))
        yield from wrong
        if any(problem.place != "model.experts_per_token" for problem in wrong):
            return
    divided = list(_sizes(scenario))
    sound = not divided
    try:
        _ = scenario.model_spec.groups, scenario.scheduler_block_tokens
    except Problems as error:
        for problem in error.problems:
            place, _, text = problem.partition(": ")
            yield Problem("model.config", f"{place}: {text}", ("model",))
        yield from divided
        return
    except KvsimError as error:
        found = _planning_problem(str(error))
        if sound or not found.place.startswith("node."):
            divided.append(found)
        sound = False
    if not sound:  # look for further problems with what one GPU would make of the rest
        scenario = scenario.on_one_gpu()
        try:
            _ = scenario.model_spec.groups, scenario.scheduler_block_tokens
        except KvsimError:
            yield from divided
            return
    if not scenario.model_spec.groups:
        yield Problem("model.layers", "hold no KV. Give at least one layer that does.", ("model",))
        return
    yield from _retention(scenario)
    yield from _lengths(scenario)
    yield from divided
    yield from _node(scenario)
    yield from fleet_problems(scenario)
    yield from _engine(scenario)
    needs = list(_needs(scenario))
    yield from needs
    if sound and not needs:
        yield from _fit(scenario)
    yield from _offload(scenario)
    if isinstance(scenario.workload, SyntheticWorkload):
        yield from _synthetic(scenario.workload)
    if scenario.objective and (
        scenario.objective.ttft_s,
        scenario.objective.tpot_s,
    ) == (None, None):
        yield Problem(
            "objective",
            "names neither ttft_s nor tpot_s. Give one, or leave it out.",
            ("objective.ttft_s", "objective.tpot_s"),
        )


def missing_files(scenario: ScenarioKeys) -> list[Problem]:
    """Files a scenario names that are not there."""
    problems = []
    for place, file in named_files(scenario).items():
        if not file.is_file():
            what = "is not a file" if file.exists() else "does not exist"
            section, _, key = place.rpartition(".")
            written = getattr(getattr(scenario, section), key)
            others = "".join(f", or {name}" for name in PATH_KEYS[place])
            remedy = f"Give a path relative to the scenario file{others}."
            text = f"{show(written)}: {file} {what}. {remedy}"
            problems.append(Problem(place, text, (f"{section}.kind",)))
    return problems


def missing_policies(scenario: ScenarioKeys) -> list[Problem]:
    """Policies a scenario names that are not to be had."""
    problems = []
    for place, kind, setting in named_policies(scenario):
        try:
            find_policy(kind, setting, scenario.directory)
        except ValueError as error:
            problems.append(Problem(place, str(error), ("offload.kind",)))
    return problems


_PLACES = ("node.", "engine.", "cache.", "model.")


def _planning_problem(text: str) -> Problem:
    """What the planning of groups refuses, at the key it names."""
    place, colon, rest = text.partition(": ")
    if colon and place.startswith(_PLACES):
        return Problem(place, rest, ("model", "node", "engine"))
    return Problem("model", text, ("model.config", "node", "engine"))


def _custom(model: CustomModel) -> Iterator[Problem]:
    """What a model written down has to say, and says only once."""
    given = [key for key in ("config", "layers", "groups") if getattr(model, key) is not None]
    if len(given) != 1:
        text = f"{' and '.join(given)} are given. Keep" if given else "is not described. Give"
        yield Problem(
            "model",
            f"{text} one of config: (a config.json), layers: and groups:.",
            tuple(f"model.{key}" for key in given or ("config", "layers", "groups")),
        )
    for number, layer in enumerate(model.layers or ()):
        for key, text in layer.problems():
            yield Problem(f"model.layers.{number}.{key}", text, (f"model.layers.{number}.kind",))
    if model.config is not None:
        for key in ("kv_replicated", "num_kv_heads", "query_heads"):
            if getattr(model, key):
                text = f"{show(getattr(model, key))}: the config says it. Leave it out."
                yield Problem(f"model.{key}", text, ("model.config",))
    yield from _groups(model)
    yield from _experts(model)


def _groups(model: CustomModel) -> Iterator[Problem]:
    for number, group in enumerate(model.groups or ()):
        place = f"model.groups.{number}.sliding_window"
        about = (f"model.groups.{number}.kind",)
        if group.kind == "sliding_window" and group.sliding_window is None:
            yield Problem(place, "is missing. A sliding_window group needs its tokens.", about)
        elif group.kind != "sliding_window" and group.sliding_window is not None:
            text = f"{group.sliding_window} stands on a {group.kind} group, which has no window."
            yield Problem(place, f"{text} Leave it out, or use kind sliding_window.", about)
        place = f"model.groups.{number}.attention_chunk_size"
        chunk = group.attention_chunk_size
        if group.kind == "chunked_local" and chunk is None:
            yield Problem(place, "is missing. A chunked_local group needs its tokens.", about)
        elif group.kind != "chunked_local" and chunk is not None:
            text = f"{chunk} stands on a {group.kind} group, which has no chunks."
            yield Problem(place, f"{text} Leave it out, or use kind chunked_local.", about)
        elif chunk is not None and chunk % group.block_size:
            text = f"{chunk} is not a multiple of the group's block_size ({group.block_size})."
            yield Problem(place, f"{text} Use one that is.", about)
        if group.kind != "mamba" and group.checkpoint_alignment is not None:
            place = f"model.groups.{number}.checkpoint_alignment"
            text = f"stands on a {group.kind} group, which has no states. Leave it out."
            yield Problem(place, text, about)


def _experts(model: CustomModel) -> Iterator[Problem]:
    given = (model.expert_bytes, model.num_experts, model.experts_per_token)
    if any(given) and not all(given) and model.config is None:
        yield Problem(
            "model",
            "gives some of expert_bytes, num_experts and experts_per_token. Give all or none.",
            ("model.expert_bytes", "model.num_experts", "model.experts_per_token"),
        )
    per_token, num = model.experts_per_token or 0, model.num_experts or 0
    if per_token > num > 0:
        text = f"{per_token} is above num_experts ({num})."
        yield Problem("model.experts_per_token", f"{text} Correct one.", ("model.num_experts",))
    if model.weight_bytes is not None and (model.expert_bytes or 0) > model.weight_bytes:
        text = f"{model.expert_bytes} is above weight_bytes ({model.weight_bytes})."
        yield Problem("model.expert_bytes", f"{text} Correct one.", ("model.weight_bytes",))


def _retention(scenario: ScenarioKeys) -> Iterator[Problem]:
    place = "cache.retention_interval"
    if scenario.cache.retention is not None and scenario.cache.retention_interval != "profile":
        yield Problem(
            place, "is given beside cache.retention, which says what is kept. Keep one of them."
        )
    unit = scenario.scheduler_block_tokens
    if unit > TOKENS_MAX and scenario.cache.enable_prefix_caching:
        text = f"the least common multiple of the block sizes, the unit of hits, is {unit} tokens."
        yield Problem("model.groups", f"{text} Use at most {TOKENS_MAX}.", ("model",))
        return
    interval = scenario.cache.retention_interval
    if isinstance(interval, str):
        return
    problem = retention_problem(
        interval,
        scenario.engine.profile,
        unit,
        any(group.kind in ("sliding_window", "mamba") for group in scenario.model_spec.groups),
    )
    if problem is not None:
        yield Problem(place, problem, ("model", "engine.profile"))


def _lengths(scenario: ScenarioKeys) -> Iterator[Problem]:
    longest = scenario.model_spec.max_model_len
    written = scenario.engine.max_model_len
    if longest is not None and isinstance(written, int) and written > longest:
        text = f"{written} is above the longest sequence of the model ({longest})."
        yield Problem("engine.max_model_len", f"{text} Use {longest} or less.", ("model",))


def _fit(scenario: ScenarioKeys) -> Iterator[Problem]:
    """The pool that memory leaves holds one request of the longest length, as the engine asks."""
    try:
        blocks = derive_blocks(scenario).num_blocks
    except (KvsimError, ValueError):
        return  # said where the pool is derived
    model, in_flight = scenario.model_spec, scenario.max_in_flight_tokens
    asked = scenario.engine.max_model_len
    wanted = asked if isinstance(asked, int) else model.max_model_len or TOKENS_MAX
    longest = longest_in_pool(model, blocks, wanted, in_flight)
    place, about = "engine.max_model_len", ("node", "model", "engine")
    if asked == "auto":
        if not longest:
            text = f"auto: no request fits a pool of {blocks:,} blocks. Use more memory."
            yield Problem(place, text, about)
        return
    if longest >= wanted or scenario.node.num_blocks is not None:
        return  # a pool that is given is one to try things with, however small
    needed = sum(blocks_of_request(model, wanted, in_flight)) + 1
    remedy = f"Use {longest} or less, auto, or more memory." if longest else "Use more memory."
    said = f"{wanted}" if isinstance(asked, int) else f"null, the model's {wanted},"
    text = (
        f"{said} needs {needed:,} blocks for one request, and memory holds {blocks:,}: the engine "
        f"would not start. {remedy}"
    )
    yield Problem(place, text, about)


def _engine(scenario: ScenarioKeys) -> Iterator[Problem]:
    engine = scenario.engine
    if engine.async_scheduling and not PROFILES[engine.profile].has_async:
        text = f"true is set, and how steps of {engine.profile} overlap is not known."
        remedy = "Use a later profile, or false."
        yield Problem("engine.async_scheduling", f"{text} {remedy}", ("engine.profile",))
    interval = engine.prefill_schedule_interval
    if interval > 1 and not PROFILES[engine.profile].has_prefill_interval:
        text = f"{interval} is set, and {engine.profile} keeps it only across data parallelism."
        remedy = "Use 1, or a later profile."
        yield Problem("engine.prefill_schedule_interval", f"{text} {remedy}", ("engine.profile",))
    active, most = engine.max_num_active_seqs, scenario.max_num_seqs
    if active is not None and active > most:
        text = f"{active} is above max_num_seqs ({most}). Use {most} or less."
        yield Problem("engine.max_num_active_seqs", text, ("engine.max_num_seqs", "node.gpu"))
    if engine.kv_cache_memory is not None and scenario.node.num_blocks is not None:
        text = "is set, and so is node.num_blocks. Leave one of them out."
        yield Problem("engine.kv_cache_memory", text, ("node.num_blocks",))
    drafts = engine.speculative
    if drafts is None:
        return
    place = "engine.speculative"
    if isinstance(drafts.acceptance, tuple) and len(drafts.acceptance) != drafts.tokens:
        text = f"{len(drafts.acceptance)} rates for {drafts.tokens} draft tokens. Give one for each"
        about = (f"{place}.tokens",)
        yield Problem(f"{place}.acceptance", f"{text}, or one number.", about)
    if drafts.tokens + 1 > scenario.max_num_batched_tokens:
        text = f"{drafts.tokens} drafts and a token do not fit a step of"
        rests_on = ("engine.max_num_batched_tokens", "node.gpu")
        tokens = scenario.max_num_batched_tokens
        yield Problem(f"{place}.tokens", f"{text} {tokens} tokens. Use fewer.", rests_on)


def _node(scenario: ScenarioKeys) -> Iterator[Problem]:
    place = "node.tensor_parallel"
    try:
        scenario.model_spec.kv_share(scenario.num_ranks)
    except KvsimError as error:
        yield Problem(place, str(error).removeprefix(f"{place}: "), ("node.gpus", "model"))


def _sizes(scenario: ScenarioKeys) -> Iterator[Problem]:
    """GPUs that nobody uses, or that are not there."""
    node, place = scenario.node, "node.tensor_parallel"
    others = node.pipeline_parallel * node.data_parallel
    used = scenario.num_ranks * others
    about = ("node.gpus", "node.pipeline_parallel", "node.data_parallel")
    sizes = f"{scenario.num_ranks}" + (f" x {others}" if others > 1 else "")
    if others > 1 and node.tensor_parallel is None and node.gpus % others:
        text = f"is not given, and {others} ranks and stages do not divide {node.gpus} GPUs."
        yield Problem(place, f"{text} Use other sizes.", about)
    elif used < node.gpus:
        idle = node.gpus - used
        which = f"GPU {used}" if idle == 1 else f"GPUs {used} to {node.gpus - 1}"
        fits = node.gpus // scenario.num_ranks
        ways = [f"{node.gpus // others}"] if not node.gpus % others else []
        if not node.gpus % scenario.num_ranks and node.pipeline_parallel == 1:
            ways.append(f"node.data_parallel: {fits}")
        text = (
            f"{sizes} leaves {which} of {node.gpus} (node.gpus) to nobody. Use "
            f"{', '.join([*ways, f'or node.gpus: {used}'])}."
        )
        yield Problem(place, text, about)
    elif used > node.gpus:
        text = f"{sizes} is above node.gpus ({node.gpus}). Use {max(1, node.gpus // others)}."
        yield Problem(place, text, about)


def _needs(scenario: ScenarioKeys) -> Iterator[Problem]:
    """What deriving the number of blocks and the roofline need to know."""
    node, model = scenario.node, scenario.model_spec
    given = scenario.engine.kv_cache_memory is not None
    sized = node.num_blocks is None
    derives, roofline = sized and not given, scenario.step_time.kind == "roofline"
    if derives or roofline:
        if node.gpu is None:
            remedy = f"Name one of {', '.join(catalog.gpu_names())}"
            yield _missing("node.gpu", remedy, derives, roofline)
        elif roofline and (gpu := scenario.gpu_spec) is not None:
            if gpu.flops_per_s(model.precision) is None:
                text = f"{gpu.name} has no peak for the model's {model.precision} arithmetic."
                yield Problem("node.gpu", f"{text} Use another GPU.", ("model", "step_time"))
            if not gpu.hbm_bytes_per_s:
                text = "is missing, for step_time.kind roofline. Give it, or use kind constant."
                yield Problem("node.gpu.bandwidth", text, ("step_time",))
        if model.weight_bytes is None:
            yield _missing("model.weight_bytes", "Give it", derives, roofline)
    if roofline and model.active_parameters is None:
        yield _missing("model.active_parameters", "Give it", False, True)
    reads_groups = roofline and model.kv_reads is None
    if sized or reads_groups:
        for number, group in enumerate(model.groups):
            if group.bytes_per_block is None:
                place = f"model.groups.{number}.bytes_per_block"
                yield _missing(place, "Give it", sized, reads_groups)


def _offload(scenario: ScenarioKeys) -> Iterator[Problem]:
    tier = scenario.offload
    if tier is None:
        return
    per_chunk = 1
    rooms = {"offload.capacity": tier.capacity}
    if isinstance(tier, CpuOffload):
        per_chunk = tier.blocks_per_chunk
        own = tier.retention_interval
        interval = scenario.retention_interval if own == "cache" else own
        problem = interval_problem(scenario.model_spec.groups, per_chunk, interval)
        if problem is not None:
            about = ("model", "offload", "engine.profile")
            place = "cache" if own == "cache" else "offload"
            yield Problem(f"{place}.retention_interval", problem, about)
        if tier.num_chunks is not None:
            rooms = {}
        if tier.below is not None:
            rooms["offload.below.capacity"] = tier.below.capacity
    try:
        sizes = scenario.tier_block_sizes
    except KvsimError:
        return  # said of node.tensor_parallel
    needed = chunk_bytes(sizes.pool_bytes, per_chunk, 1)
    for place, capacity in rooms.items():
        if num_chunks_in(capacity, needed) < 1:
            text = f"{capacity} bytes hold no chunk: one takes {needed}. Use {needed} or more."
            yield Problem(place, text, ("model", "node", "offload"))


def _missing(place: str, remedy: str, for_blocks: bool, for_roofline: bool) -> Problem:
    needs = ["the number of blocks"] * for_blocks + ["step_time.kind roofline"] * for_roofline
    ways_out = ["set node.num_blocks"] * for_blocks
    ways_out += ["use step_time.kind constant"] * for_roofline
    text = f"is missing, for {' and '.join(needs)}. {remedy}, or {' and '.join(ways_out)}."
    return Problem(place, text, ("model", "node.num_blocks", "step_time", "step_time.kind"))


def _synthetic(workload: SyntheticWorkload) -> Iterator[Problem]:
    place, sessions = "workload.sessions", workload.sessions
    if sessions.starts is None and sessions.concurrency is None:
        text = "has neither starts nor concurrency. Give one, as in starts: poisson(per_s=2)."
        yield Problem(place, text, (f"{place}.starts", f"{place}.concurrency"))
    needs = [f"{place}.starts"] * (sessions.starts == "recorded")
    for number, content in enumerate(workload.content):
        for key, value in content:
            if isinstance(value, str) and value.startswith("recorded-"):
                needs.append(f"workload.content.{number}.{key}")
    if workload.path is None:
        for need in needs:
            yield Problem(need, "is taken from a trace, and workload.path names none. Give it.")
    elif not needs:
        text = f"{show(workload.path)}: nothing is taken from it. Leave it out, or use "
        yield Problem("workload.path", f"{text}recorded-prompt, recorded-output or recorded.")
