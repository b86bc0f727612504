"""Names in files of measurements, as the catalog has them: `nvidia/DeepSeek-R1-0528-FP4` and such.

A name is what the catalog has where it is so once organizations, precisions, dates and what a
checkpoint was tuned for are taken off; or where it begins with it, or the other way round, up to a
hyphen. What is not found stays as it is, for the catalog to refuse with the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvsim import catalog

_TUNED = re.compile(
    r"-(instruct|chat|it|hf|base|thinking-\d+|preview|\d{4}|mxfp4|nvfp4|fp4|fp8|bf16|int4|awq|w4a16"
    r"|w4a8|v2|sxm\d?|hgx|nvl|pcie|\d+gb)$"
)
_SAME_WORK = {
    "dsr1": "deepseek-r1",
    "dsv4-pro": "deepseek-v4-pro",
    "dsv4-flash": "deepseek-v4-flash",
    "deepseek-v3.1": "deepseek-v3",
    "gptoss-120b": "gpt-oss-120b",
    "gptoss-20b": "gpt-oss-20b",
    "glm-4.6": "glm-4.7",
    "glm-5": "glm-5.2",
    "glm-5.1": "glm-5.2",
    "kimi-k2.6": "kimi-k2.5",
    "llama-70b": "llama-3.3-70b",
    "llama-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.3-70b",
    "llama-3-8b": "llama-3.1-8b",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
}
"""Models of the same layers as one of the catalog."""
_USUAL = {"a100": "a100-80gb", "h20-141gb": "h20-3e"}
_PRECISIONS = {
    "bfloat16": "bf16",
    "fp16": "bf16",
    "float16": "bf16",
    "fp8-e4m3": "fp8",
    "int8": "fp8",
    "w8a8": "fp8",
    "mxfp8": "fp8",
    "mxfp4": "fp4",
    "nvfp4": "fp4",
    "int4": "fp4",
    "awq": "fp4",
    "w4a16": "fp4",
}
_ENGINES = {
    "trt": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "nim(trt-llm)": "tensorrt-llm",
    "nim": "tensorrt-llm",
}


def model_name(name: str) -> str:
    """The catalog's name of a model."""
    return _near(name, catalog.model_names(), _SAME_WORK)


def gpu_name(name: str) -> str:
    """The catalog's name of a GPU."""
    return _near(name.lower().replace("nvidia", "").strip(" -_"), catalog.gpu_names(), _USUAL)


def precision_name(name: str) -> str:
    """``bf16``, ``fp8`` or ``fp4``; others as they are."""
    plain = name.strip().lower().replace("_", "-")
    return _PRECISIONS.get(plain, plain)


def engine_name(name: str) -> str:
    """An engine by the name of its timing; others as they are."""
    plain = name.strip().lower().replace("_", "-").removeprefix("dynamo-")
    return _ENGINES.get(plain, plain)


def _near(name: str, names: Sequence[str], same: dict[str, str]) -> str:
    plain = name.rpartition("/")[2].strip().lower().replace("_", "-").replace(" ", "-")
    plain = plain.removeprefix("meta-")
    while True:
        found = same.get(plain, plain)
        if found in names:
            return found
        shorter = _TUNED.sub("", plain)
        if shorter == plain:
            break
        plain = shorter
    begins = [known for known in names if plain.startswith(f"{known}-")]
    if begins:
        return max(begins, key=len)
    longer = [known for known in names if known.startswith(f"{plain}-")]
    return longer[0] if len(longer) == 1 else name
