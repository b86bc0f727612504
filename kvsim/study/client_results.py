"""Results of benchmark clients as rows of a file of measurements.

What is read, told apart by content:

- vLLM ``bench serve --save-result``: a JSON object, ``mean_ttft_ms`` and more in it.
- SGLang ``bench_serving --output-file``: the same names, an object a line; its ``server_info``,
  ``random_input_len`` and ``random_range_ratio`` are used where they are there.
- AIPerf ``profile_export_aiperf.json`` or ``.csv``: a metric each with ``avg`` and its unit. Its
  inter-token latency is a request's mean over the tokens after the first: the TPOT of others.
- GuideLLM JSON: ``benchmarks``, each with ``metrics`` of successful requests. Its
  ``inter_token_latency_ms`` leaves the first token out, ``time_per_output_token_ms`` does not.
- our own CSV, plain or gzip (`kvsim.study.measured`).

Clients know neither GPUs nor tensor parallelism; who calls gives these columns.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvsim import catalog
from kvsim.errors import Problems, show
from kvsim.study.measured import Ints

_UNITS_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "milliseconds": 1e-3,
    "nanoseconds": 1e-9,
}
_BYTES_MAX = 2**28
_SEED = 0


@dataclass
class ClientRow:
    """One benchmark.

    Attributes:
        place: where it stands, for messages: the file, and the number in it.
        cells: columns of a file of measurements that it says, as text.
        lengths: tokens of the prompts and outputs that were sent, where it says them.
        served: the name of the model as the client knows it; "" where it does not say.
        left_out: why it is no closed loop; None where it is one.
        problems: what is wrong with it.
    """

    place: str
    cells: dict[str, str] = field(default_factory=dict)
    lengths: tuple[Ints, Ints] | None = None
    served: str = ""
    left_out: str | None = None
    problems: list[str] = field(default_factory=list)

    def put(self, column: str, value: object, unit_s: float = 1.0) -> None:
        """Set a cell to a number, where there is one; what is no number is a problem."""
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.problems.append(f"{self.place}{column}: {show(value)} is not a number.")
            return
        try:
            number = float(value.replace(",", "") if isinstance(value, str) else value)
        except ValueError:
            self.problems.append(f"{self.place}{column}: {show(value)} is not a number.")
            return
        self.cells[column] = f"{number * unit_s:.12g}"

    def put_time(self, column: str, value: object, unit_s: float) -> None:
        """Set a time; one that is not above 0 is a problem, in the client's own number."""
        if isinstance(value, int | float) and not value > 0:
            self.problems.append(f"{self.place}{column}: {show(value)} is not above 0.")
            return
        self.put(column, value, unit_s)


def read_rows(path: Path) -> list[ClientRow]:
    """All benchmarks of a file.

    Raises:
        Problems: it cannot be read, or is in no form that is known.
    """
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise Problems(str(path), [f"is larger than {_BYTES_MAX} bytes. Give results alone."])
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise Problems(str(path), [f"cannot be read: {error.strerror or error}."]) from None
    except (UnicodeDecodeError, EOFError) as error:
        raise Problems(str(path), [f"is no text: {error}."]) from None
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(text, path)
    return _of_csv(text, path)


def _of_json(text: str, path: Path) -> list[ClientRow]:
    try:
        values = [json.loads(text)]
    except json.JSONDecodeError:
        values = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                values.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise Problems(str(path), [f"line {number}: is not JSON: {error.msg}."]) from None
    flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
    rows: list[ClientRow] = []
    for number, value in enumerate(flat, start=1):
        place = f"{path.name}: " if len(flat) == 1 else f"{path.name}, {number}: "
        if isinstance(value, dict) and isinstance(value.get("benchmarks"), list):
            for inner, part in enumerate(value["benchmarks"], start=1):
                rows.append(_guidellm(part, value, f"{path.name}, benchmark {inner}: "))
        elif isinstance(value, dict) and isinstance(value.get("time_to_first_token"), dict):
            rows.append(_aiperf(value, place))
        elif isinstance(value, dict) and ("total_input_tokens" in value or "mean_ttft_ms" in value):
            rows.append(_serving(value, place))
        else:
            raise Problems(str(path), [f"{place.removesuffix(': ')}: {_UNKNOWN}"])
    if not rows:
        raise Problems(str(path), ["holds no benchmark."])
    return rows


_UNKNOWN = (
    "is no result that is known: vLLM bench serve, SGLang bench_serving, AIPerf or GuideLLM "
    "JSON, AIPerf CSV, or a CSV file of measurements."
)


def _serving(value: Mapping[str, Any], place: str) -> ClientRow:
    """A result of vLLM's or SGLang's client, which name alike."""
    row = ClientRow(place, served=str(value.get("model_id") or ""))
    completed = value.get("completed")
    if not isinstance(completed, int) or completed < 1:
        row.problems.append(f"{place}completed: {show(completed)}: no request was answered.")
        return row
    for name, key in (("ttft", "ttft_ms"), ("tpot", "tpot_ms")):
        row.put_time(f"{name}_mean_s", value.get(f"mean_{key}"), 1e-3)
        row.put_time(f"{name}_p50_s", value.get(f"median_{key}"), 1e-3)
    row.put("num_prompts", completed)
    concurrency, rate = value.get("max_concurrency"), value.get("request_rate", "inf")
    if rate not in ("inf", None) and math.isfinite(_float(rate)):
        row.left_out = f"requests arrive at {rate:g} a second: no closed loop"
    row.put("concurrency", concurrency or completed)
    isl, osl = value.get("total_input_tokens"), value.get("total_output_tokens")
    ratio = value.get("random_range_ratio")
    if _lists(value):
        answered = [bool(t) for t in value["output_lens"]]
        both = [
            np.array(
                [n for n, is_one in zip(value[key], answered, strict=True) if is_one], np.int64
            )
            for key in ("input_lens", "output_lens")
        ]
        row.lengths = (np.maximum(both[0], 1), np.maximum(both[1], 1))
    elif value.get("dataset_name") == "random" and isinstance(ratio, int | float) and ratio < 1:
        row.put("len_low_ratio", ratio)
        isl, osl = (value.get(f"random_{key}_len", 0) * completed for key in ("input", "output"))
    for column, tokens in (("isl", isl), ("osl", osl)):
        if isinstance(tokens, int | float):
            row.put(column, max(round(tokens / completed), 1))
    _server_info(row, value)
    return row


def _lists(value: Mapping[str, Any]) -> bool:
    lists = [value.get(key) for key in ("input_lens", "output_lens")]
    return all(isinstance(part, list) and part for part in lists) and len(lists[0] or ()) == len(
        lists[1] or ()
    )


def _server_info(row: ClientRow, value: Mapping[str, Any]) -> None:
    """What SGLang's client asks of its server."""
    backend = str(value.get("backend", ""))
    if backend.startswith("sglang") and not backend.startswith("sglang-oai"):
        row.cells["engine"] = "sglang"
    info = value.get("server_info")
    if not isinstance(info, Mapping):
        return
    row.served = row.served or str(info.get("served_model_name") or info.get("model_path") or "")
    row.cells["engine"] = "sglang"
    sizes = (("tp", "tp_size"), ("dp", "dp_size"), ("ep", "ep_size"))
    for column, key in (*sizes, ("chunk", "chunked_prefill_size")):
        if isinstance(info.get(key), int) and info[key] > 0:
            row.put(column, info[key])
    if info.get("enable_dp_attention"):
        row.cells["dp_attention"] = "true"
    if isinstance(info.get("version"), str):
        row.cells["version"] = info["version"]


def _aiperf(value: Mapping[str, Any], place: str) -> ClientRow:
    row = ClientRow(place)
    metrics = {key: part for key, part in value.items() if isinstance(part, Mapping)}
    setting = metrics.get("input_config", {})
    row.served = _first(_found(setting, ("model_names", "model")))
    _aiperf_metrics(row, metrics)
    concurrency, rate = _found(setting, ("concurrency",)), _found(setting, ("request_rate",))
    if isinstance(rate, int | float):
        row.left_out = f"requests arrive at {rate:g} a second: no closed loop"
    if isinstance(concurrency, int):
        row.put("concurrency", concurrency)
    return row


def _aiperf_metrics(row: ClientRow, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    for name, key in (("ttft", "time_to_first_token"), ("tpot", "inter_token_latency")):
        part = metrics.get(key)
        if part is None:
            continue
        unit = str(part.get("unit", "ms")).lower()
        if unit not in _UNITS_S:
            text = f"unit {show(part.get('unit'))} is none of {', '.join(_UNITS_S)}."
            row.problems.append(f"{row.place}{key}: {text}")
            continue
        row.put_time(f"{name}_mean_s", part.get("avg"), _UNITS_S[unit])
        row.put_time(f"{name}_p50_s", part.get("p50"), _UNITS_S[unit])
    num = _float(metrics.get("request_count", {}).get("avg"))
    if math.isfinite(num):
        row.put("num_prompts", num)
    lengths = [metrics.get(f"{key}_sequence_length", {}) for key in ("input", "output")]
    _spread(row, [(_float(part.get("avg")), _float(part.get("std"))) for part in lengths], num)


def _guidellm(value: object, whole: Mapping[str, Any], place: str) -> ClientRow:
    row = ClientRow(place)
    metrics = value.get("metrics") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(metrics, Mapping):
        row.problems.append(f"{place}metrics: is missing. Give GuideLLM's JSON with its metrics.")
        return row

    def of(key: str) -> Mapping[str, Any]:
        part = metrics.get(key)
        good = part.get("successful") if isinstance(part, Mapping) else None
        return good if isinstance(good, Mapping) else {}

    for name, key in (("ttft", "time_to_first_token_ms"), ("tpot", "inter_token_latency_ms")):
        row.put_time(f"{name}_mean_s", of(key).get("mean"), 1e-3)
        row.put_time(f"{name}_p50_s", of(key).get("median"), 1e-3)
    strategy = _found(value, ("strategy",))
    strategy = strategy if isinstance(strategy, Mapping) else {}
    kind = str(_found(strategy, ("type_", "kind", "type")) or "")
    if kind == "synchronous":
        row.put("concurrency", 1)
    elif kind in ("concurrent", "throughput"):
        row.put("concurrency", _found(strategy, ("streams", "max_concurrency", "concurrency")))
    elif kind:
        row.left_out = f"requests arrive by themselves ({kind}): no closed loop"
    totals = _found(value, ("request_totals", "requests_made"))
    num = _float(totals.get("successful")) if isinstance(totals, Mapping) else math.nan
    if math.isfinite(num):
        row.put("num_prompts", num)
    lengths = [of(f"{key}_token_count") for key in ("prompt", "output")]
    _spread(row, [(_float(part.get("mean")), _float(part.get("std_dev"))) for part in lengths], num)
    row.served = _first(_found(value, ("model",)) or _found(whole.get("args", {}), ("model",)))
    return row


def _spread(row: ClientRow, moments: Sequence[tuple[float, float]], num: float) -> None:
    """Lengths by mean and standard deviation: drawn uniformly, where they differ at all."""
    for column, (mean, _) in zip(("isl", "osl"), moments, strict=True):
        if math.isfinite(mean):
            row.put(column, max(round(mean), 1))
    known = all(math.isfinite(mean) for mean, _ in moments)
    if not known or not num >= 1 or not all(std > 0.06 * mean for mean, std in moments):
        return
    random = np.random.RandomState(_SEED)
    drawn = []
    for mean, std in moments:
        half = math.sqrt(3) * std
        values = random.uniform(max(mean - half, 1), mean + half, int(num))
        drawn.append(np.maximum(np.round(values), 1).astype(np.int64))
    row.lengths = (drawn[0], drawn[1])


def _of_csv(text: str, path: Path) -> list[ClientRow]:
    try:
        lines = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise Problems(str(path), [f"is no CSV file: {error}."]) from None
    header = next((line for line in lines if line), [])
    if header[:1] == ["Metric"]:
        return [_aiperf_csv(lines, f"{path.name}: ")]
    if not {"isl", "osl", "concurrency"} & set(header):
        raise Problems(str(path), [_UNKNOWN])
    rows = []
    for number, cells in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        row = ClientRow(f"{path.name}, line {number}, ")
        row.cells = {key: cell for key, cell in cells.items() if key and isinstance(cell, str)}
        rows.append(row)
    if not rows:
        raise Problems(str(path), ["has no rows."])
    return rows


def _aiperf_csv(lines: Sequence[Sequence[str]], place: str) -> ClientRow:
    """AIPerf's CSV: a table of statistics, then one of single values."""
    metrics: dict[str, dict[str, Any]] = {}
    header: Sequence[str] = ()
    for line in lines:
        if line[:1] == ["Metric"]:
            header = [name.lower() for name in line]
        elif len(line) > 1 and header:
            name, _, unit = line[0].partition("(")
            key = name.strip().lower().replace(" ", "_")
            part: dict[str, Any] = {"unit": unit.rstrip(") ")}
            for column, cell in zip(header[1:], line[1:], strict=False):
                number = _float(cell.replace(",", ""))
                part["avg" if column == "value" else column] = (
                    number if math.isfinite(number) else None
                )
            metrics.setdefault(key, part)
    row = ClientRow(place)
    _aiperf_metrics(row, metrics)
    return row


def _found(value: object, keys: Sequence[str]) -> Any:
    """The first value under one of the keys, at any depth; releases nest their settings anew."""
    for inner in _mappings(value):
        for key in keys:
            if inner.get(key) is not None:
                return inner[key]
    return None


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for key, part in value.items():
            if key not in ("metrics", "requests"):
                yield from _mappings(part)


def _first(value: object) -> str:
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    return value if isinstance(value, str) else ""


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def catalog_name(served: str) -> str | None:
    """The model of the catalog that a client calls so: by its last part, without ``-instruct``."""
    name = served.rsplit("/", 1)[-1].lower().removesuffix("-instruct")
    return name if name in catalog.model_names() else None
