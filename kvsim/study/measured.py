"""Public measurements of serving: each point of a file as a closed loop to be simulated.

A row is a benchmark: what served, how, what was sent, and the time to the first token and per token
after it. What cannot be expressed is left out with the reason. One file because a reading and what
it leaves out belong together. Readings that the files leave to their users, each with its source:

- Lengths are drawn uniformly from ``len_low_ratio`` times the named ones to these. Where they are
  fixed (ratio 1) they are drawn 10 % around them: otherwise all requests of a batch would end in
  one step and arrive together for ever, of which no measurement of this kind shows a trace.
- TensorRT-LLM takes prompts whole: its step holds at least a prompt and the decodes
  (``max_num_tokens`` of the public scripts).
- A note that says "together" names repetitions of one batch, not a closed loop.
- A data-parallel degree of the square of the expert-parallel one is that of a node counted twice.
- SGLang without a named chunk takes 8,192 tokens on Hopper and 16,384 on Blackwell (its default),
  and with attention data parallelism each rank takes its part of them.
- SGLang runs at most 256 requests of DeepSeek V4 at once (its default for that model; 128 in its
  cookbook's data-parallel servers with drafts of Pro on GB200 and of Flash on Hopper), but for
  InferenceX's data-parallel servers, whose scripts give more. On eight data-parallel B200 or B300
  it takes 65,536 tokens in all and delays prompts until every rank has one, 30 steps at most; with
  drafts 32,768 without a delay. On Hopper it keeps two BF16 latents of every token and layer,
  windows unfreed: what its servers of Flash and Pro there, which ran out of memory, agree on.
- vLLM planned synchronously before 0.14; the others overlap.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim import catalog
from kvsim.catalog import Gpu, Model
from kvsim.errors import KvsimError, Problems, show
from kvsim.study.measured_names import engine_name, gpu_name, model_name, precision_name
from kvsim.times.closed_loop import HOLD_STEPS, PLANS, WHOLE, Loop
from kvsim.times.constants import Constants, catalog_constants, conditions
from kvsim.times.quantized import at_precision
from kvsim.times.roofline import roofline
from kvsim.times.step_time import UNCAPPED_TOKENS, StepTimeParams
from kvsim.times.work import Layout, Work, layer_count, work_of

Ints = npt.NDArray[np.int64]

REQUIRED = ("id", "model", "gpu", "precision", "engine", "tp", "isl", "osl", "concurrency")
"""Columns a file of measurements needs; of the times at least one of TIMES."""
TIMES = ("ttft_mean_s", "ttft_p50_s", "tpot_mean_s", "tpot_p50_s")
_NUMBERS = ("dp", "ep", "num_prompts", "chunk", "len_low_ratio", "tot_tok_s_gpu", "max_num_seqs")
_UTILIZATION, _RESERVE_BYTES = 0.92, 3e9
_SGLANG_V4_REQUESTS = 256
_SGLANG_V4_HOPPER_BYTES = 2304.0  # a token and layer
_DELAYED_STEPS = 30  # of SGLang's prefill delayer
_LEAST_KV_BYTES = 8e9  # less than this would not have been benchmarked


@dataclass(frozen=True)
class Point:
    """One measurement, and the loop that stands for it.

    Attributes:
        row: as in the file.
        ttft_s: measured; NaN where it was not, or is not to be compared.
        tpot_s: measured; NaN where it was not.
        ttft_is_median: whether the median was measured and no mean.
        tpot_is_median: the same of the other.
        left_out: why it cannot be expressed; None where it can.
        model: what was served; None where left out, likewise the rest.
        gpu: on what.
        layout: how GPUs shared it.
        engine: one of ``work.ENGINES``.
        asynchronous: whether the engine planned beside the GPU.
        lengths: int64 [requests] twice, tokens of the prompts and outputs that were sent; None to
            draw them.
    """

    row: Mapping[str, str]
    ttft_s: float
    tpot_s: float
    ttft_is_median: bool
    tpot_is_median: bool
    left_out: str | None = None
    model: Model | None = None
    gpu: Gpu | None = None
    layout: Layout | None = None
    engine: str = "vllm"
    asynchronous: bool = True
    lengths: tuple[Ints, Ints] | None = None

    @property
    def set_up(self) -> str:
        """Model, GPU, engine, precision, TP and EP: what is held back together."""
        row = self.row
        keys = (*(row[key] for key in ("model", "gpu")), self.engine, row["precision"])
        return "|".join((*keys, str(whole(row, "tp")), str(whole(row, "ep"))))

    @property
    def concurrency(self) -> int:
        """Requests at once."""
        return whole(self.row, "concurrency")

    def _known(self) -> tuple[Model, Gpu, Layout]:
        if self.model is None or self.gpu is None or self.layout is None:
            raise TypeError("a point that is left out has no set-up")
        return self.model, self.gpu, self.layout

    def params(self, constants: Constants | None = None) -> StepTimeParams:
        """Step times of its set-up."""
        model, gpu, layout = self._known()
        return roofline(
            model,
            gpu,
            layout,
            engine=self.engine,
            asynchronous=self.asynchronous,
            constants=constants,
        )

    def work(self) -> Work:
        """What a rank reads and computes."""
        return work_of(*self._known())

    def conditions(self) -> frozenset[str]:
        """Which factors of the constants count."""
        model, gpu, layout = self._known()
        met = conditions(model, gpu, layout, self.engine, asynchronous=self.asynchronous)
        # What a client adds is no property of a server, but it is in what was measured.
        return met | {f"client-{self.row.get('source', '')}"}

    def values(self, constants: Constants | None = None) -> dict[str, float]:
        """Constants for it; None for those of the catalog."""
        return (constants or catalog_constants()).of(self.conditions())

    def _most_at_once(self) -> int:
        """Requests that the engine runs at once unless told otherwise."""
        model, gpu, layout = self._known()
        ranks, drafts = layout.data_parallel, layout.draft_tokens
        if self.engine != "sglang" or model.family != "deepseek-v4":
            return 1 << 30
        if ranks > 1 and self.row.get("source", "").startswith("inferencex"):
            return 1 << 30
        large = model.name == "deepseek-v4-pro"
        narrow = gpu.name == "gb200" if large else gpu.generation == "hopper"
        return _SGLANG_V4_REQUESTS // (2 if ranks > 1 and drafts and narrow else 1)

    def _hold_steps(self) -> int:
        """Steps that prompts wait at most until every rank has one."""
        _, _, layout = self._known()
        if self.engine == "tensorrt-llm":
            return HOLD_STEPS
        return _DELAYED_STEPS if self._wide_v4 and not layout.draft_tokens else 0

    def _chunk(self) -> int:
        """Most tokens of a rank's step."""
        _, gpu, layout = self._known()
        ranks, told = layout.data_parallel, whole(self.row, "chunk")
        if self.engine != "sglang" or ranks == 1:
            return told or (16384 if gpu.generation == "blackwell" else 8192)
        if self._wide_v4:
            return 4096 if layout.draft_tokens else 8192
        return told or (16384 if gpu.generation == "blackwell" else 8192) // ranks

    @property
    def _wide_v4(self) -> bool:
        """Whether it is SGLang's node of eight data-parallel Blackwells for DeepSeek V4."""
        model, gpu, layout = self._known()
        v4 = self.engine == "sglang" and model.family == "deepseek-v4"
        return v4 and layout.data_parallel >= 8 and gpu.name in ("b200", "b300")

    def loop(self, tokens_a_step: float = 1.0) -> Loop:
        """What was sent, and how the engine took it.

        Args:
            tokens_a_step: that a decode yields on average, accepted drafts included.
        """
        model, gpu, layout = self._known()
        row, concurrency = self.row, self.concurrency
        prompts, outputs = self.lengths or _drawn_lengths(row)
        plan, ranks = PLANS[self.engine], layout.data_parallel
        chunk = self._chunk()
        if plan == WHOLE:
            decodes = math.ceil(concurrency / ranks) * (1 + layout.draft_tokens)
            chunk = max(chunk, int(prompts.max()) + decodes)
        weights = work_of(model, gpu, layout)
        used = weights.dense_bytes + weights.head_bytes * 2 + weights.expert_bytes
        room = gpu.hbm_bytes * _UTILIZATION - used - _RESERVE_BYTES
        held = [
            (
                group.bytes_per_block / group.block_size,
                group.sliding_window or group.attention_chunk_size or UNCAPPED_TOKENS,
            )
            if group.kind != "mamba"
            else (float(group.bytes_per_block), 1)
            for group in model.groups
            if group.bytes_per_block is not None
        ]
        share = model.kv_share(layout.tensor_parallel)
        if self.engine == "sglang" and model.family == "deepseek-v4" and gpu.generation == "hopper":
            held = [(_SGLANG_V4_HOPPER_BYTES * layer_count(model), UNCAPPED_TOKENS)]
        return Loop(
            prompts=prompts,
            outputs=outputs,
            concurrency=concurrency,
            num_ranks=ranks,
            plan=plan,
            hold_steps=self._hold_steps(),
            step_tokens=chunk,
            max_sequences=max((whole(row, "max_num_seqs") or self._most_at_once()) // ranks, 1),
            kv_bytes=max(room, _LEAST_KV_BYTES),
            held_bytes=np.array([part[0] * share for part in held]),
            held_cap=np.array([part[1] for part in held], np.int64),
            tokens_a_step=tokens_a_step,
        )


def whole(row: Mapping[str, str], key: str) -> int:
    """A whole number of a row; 0 where it says nothing."""
    return int(float(row.get(key) or 0))


def number(row: Mapping[str, str], key: str) -> float:
    """A number of a row; NaN where it says nothing."""
    return float(row.get(key) or "nan")


def read_measured(path: Path) -> list[Point]:
    """Points of a CSV file, plain or compressed with gzip.

    Raises:
        Problems: it cannot be read, lacks columns, or a cell is no number; all at once.
    """
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        reader = csv.DictReader(io.StringIO(content.decode("utf-8")))
        rows = list(reader)
    except OSError as error:
        raise Problems(str(path), [f"cannot be read: {error.strerror or error}."]) from None
    except (UnicodeDecodeError, EOFError, csv.Error) as error:
        raise Problems(str(path), [f"is no CSV file: {error}."]) from None
    columns = reader.fieldnames or ()
    problems = [
        f"column {name}: is missing. A file of measurements has {', '.join(REQUIRED)}."
        for name in REQUIRED
        if name not in columns
    ]
    problems += bad_columns(columns)
    if not rows and not problems:
        problems.append("has no rows.")
    if not problems:
        for line, row in enumerate(rows, start=2):
            problems += bad_cells(row, f"line {line}, ")
    if problems:
        raise Problems(str(path), problems)
    return [make_point(row) for row in rows]


def bad_columns(columns: Collection[str]) -> list[str]:
    """What is wrong with the columns of times."""
    problems = [
        f"column {name}: is in no unit that is read. Give {name.removesuffix('_ms')}_s, in seconds."
        for name in columns
        if name.endswith("_ms") and f"{name.removesuffix('_ms')}_s" in TIMES
    ]
    if not problems and not any(name in columns for name in TIMES):
        problems.append(f"no column with times. Give at least one of {', '.join(TIMES)}.")
    return problems


def bad_cells(row: Mapping[str, str], place: str) -> list[str]:
    """What is wrong with the cells of a row; ``place`` goes before each column's name."""
    problems = []
    for name in ("tp", "isl", "osl", "concurrency"):
        if not _is_number(row[name]) or float(row[name]) < 1 or float(row[name]) % 1:
            problems.append(f"{place}{name}: {show(row[name])} is not a whole number from 1.")
    for name in (*TIMES, *_NUMBERS):
        cell = row.get(name)
        if cell and not _is_number(cell):
            problems.append(f"{place}{name}: {show(cell)} is not a number.")
        elif cell and name in TIMES and not 1e-6 < float(cell) < 1e5:
            problems.append(f"{place}{name}: {show(cell)} is no plausible time. Give seconds.")
    return problems


def _is_number(text: str | None) -> bool:
    try:
        return math.isfinite(float(text or "nan"))
    except ValueError:
        return False


def make_point(
    row: Mapping[str, str],
    *,
    model: Model | None = None,
    gpu: Gpu | None = None,
    lengths: tuple[Ints, Ints] | None = None,
) -> Point:
    """A row whose cells are right as a point, left out or not.

    Args:
        row: by column.
        model: what was served; None for the one of the catalog that the row names.
        gpu: on what; likewise.
        lengths: of the requests that were sent; None to draw them.
    """
    engine = engine_name(row["engine"])
    ttft_s, ttft_is_median = _time(row, "ttft")
    tpot_s, tpot_is_median = _time(row, "tpot")
    polls = model_name(row["model"]) == "deepseek-r1" and engine == "sglang"
    if whole(row, "concurrency") > 256 or polls:
        ttft_s = math.nan
    point = Point(row, ttft_s, tpot_s, ttft_is_median, tpot_is_median, engine=engine)
    reason = _not_expressed(point)
    if reason is None:
        try:
            gpu, layout = gpu or catalog.gpu(gpu_name(row["gpu"])), _layout(row)
            model = model or served_model(row["model"], row["precision"], gpu)
            asynchronous = not (engine == "vllm" and _before(row.get("version", ""), (0, 14)))
            if row.get("async_scheduling"):
                asynchronous = row["async_scheduling"].lower() in ("true", "1")
            point = Point(
                row,
                ttft_s,
                tpot_s,
                ttft_is_median,
                tpot_is_median,
                None,
                model,
                gpu,
                layout,
                engine,
                asynchronous,
                lengths,
            )
            point.params()
        except KvsimError as error:
            reason = str(error)
    if reason is None:
        return point
    return Point(
        row, ttft_s, tpot_s, ttft_is_median, tpot_is_median, left_out=reason, engine=engine
    )


def _time(row: Mapping[str, str], name: str) -> tuple[float, bool]:
    """The mean, or the median where there is none; and which of them."""
    mean = number(row, f"{name}_mean_s")
    return (number(row, f"{name}_p50_s"), True) if math.isnan(mean) else (mean, False)


def served_model(name: str, precision: str, gpu: Gpu) -> Model:
    """A model of the catalog as it was served.

    Weights in fewer bits than the GPU's tensor cores know are computed with in BF16.

    Raises:
        KvsimError: no such model or precision.
    """
    model = at_precision(catalog.model(model_name(name)), precision_name(precision))
    if gpu.flops_per_s(model.precision) is None:
        model = dataclasses.replace(model, precision="bf16")
    return model


def _says(row: Mapping[str, str], key: str) -> bool:
    return (row.get(key) or "").strip().lower() in ("true", "1", "1.0", "yes")


def _layout(row: Mapping[str, str]) -> Layout:
    tp, ep, dp = (max(whole(row, key), 1) for key in ("tp", "ep", "dp"))
    ranks = dp
    if _says(row, "dp_attention"):
        ranks = ep if dp == ep * ep else dp if dp > 1 else tp
    split = max(tp // ranks, 1)
    return Layout(
        tensor_parallel=split,
        data_parallel=ranks,
        expert_parallel=ep,
        num_gpus=split * ranks,
        draft_tokens=_draft_tokens(row, ranks),
    )


def _speculation(row: Mapping[str, str]) -> str:
    spec = (row.get("spec") or "none").strip().lower()
    return "none" if spec in ("off", "false", "no", "0") else spec


def _draft_tokens(row: Mapping[str, str], ranks: int) -> int:
    spec = _speculation(row)
    if spec == "none":
        return 0
    number = re.fullmatch(r"(?:eagle-|mtp-?)?(\d+)(?:-\d+-\d+)?", spec)
    if number is not None:
        return int(number[1])
    # Public scripts of InferenceX: TensorRT-LLM drafts 3, with attention data parallelism 1; the
    # EAGLE of SGLang runs 2 steps, vLLM's MTP is taken to do the same.
    if engine_name(row["engine"]) == "tensorrt-llm":
        return 1 if ranks > 1 else 3
    return 2


def _not_expressed(point: Point) -> str | None:
    """Why a row cannot be expressed, as far as it says so itself."""
    row = point.row
    if math.isnan(point.tpot_s) and math.isnan(point.ttft_s):
        return "no time that can be compared"
    if _says(row, "disagg"):
        return "prefill and decode on different engines: not one engine's steps"
    if point.engine not in PLANS:
        return f"engine {row['engine']}: how it plans steps is not known"
    spec = _speculation(row)
    if re.fullmatch(r"none|mtp|eagle3?|(eagle-|mtp-?)?\d{1,2}(-\d+-\d+)?", spec) is None:
        return f"speculation {spec}: its drafts are not published"
    return None


def _before(version: str, release: tuple[int, int]) -> bool:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    return (int(parts[0]), int(parts[1])) < release


def _drawn_lengths(row: Mapping[str, str]) -> tuple[Ints, Ints]:
    """Tokens of the prompts and outputs of all requests."""
    num = whole(row, "num_prompts") or 10 * whole(row, "concurrency")
    if "together" in row.get("note", ""):
        num = whole(row, "concurrency")  # repetitions of a batch that is sent at once
    # The seed of public benchmark clients; the order of draws is theirs, too.
    random = np.random.RandomState(0)
    ratio = number(row, "len_low_ratio")
    prompts = _lengths(random, whole(row, "isl"), ratio, num)
    return prompts, _lengths(random, whole(row, "osl"), ratio, num)


def _lengths(random: np.random.RandomState, named: int, ratio: float, num: int) -> Ints:
    if math.isnan(ratio) or ratio >= 1:
        drawn = np.round(named * random.uniform(0.9, 1.1, num)).astype(np.int64)
        return np.maximum(drawn, 1)
    low = max(int(named * ratio), 1)
    return random.randint(low, named + 1, num).astype(np.int64)
