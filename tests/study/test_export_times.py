"""Tables of another package's step times, and what is said where it is not there."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import KvsimError
from kvsim.study.export_times import CORRECTIONS, export_aisimulate
from kvsim.times.step_time import step_seconds, table_step_time


class Config:
    """Stands for the package's own."""

    def __init__(self, **given: Any) -> None:
        self.given = given


class PerfModel:
    """The same; milliseconds that grow with everything."""

    model: str

    @classmethod
    def best_available(cls, config: Config) -> PerfModel:
        if config.given["model"] == "unknown":
            raise RuntimeError("no such model")
        made = cls()
        made.model = config.given["model"]
        return made

    def predict_decode_latency_total(self, batch: int, total_past_kv_tokens: int) -> float:
        if self.model == "unmeasured":
            raise ValueError("static timing requires a native estimator")
        return 4.0 + batch * 0.01 + total_past_kv_tokens * 1e-6

    def predict_prefill_latency_total(self, batch: int, tokens: int, read: int) -> float:
        return 6.0 + batch * tokens * (0.01 + read * 1e-7)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = types.ModuleType("aisimulate_core.sdk")
    sdk.RustForwardPassPerfModel = PerfModel  # type: ignore[attr-defined]
    sdk.ForwardPassPerfModelConfig = Config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aisimulate_core", types.ModuleType("aisimulate_core"))
    monkeypatch.setitem(sys.modules, "aisimulate_core.sdk", sdk)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.13.0")


@pytest.mark.usefixtures("package")
def test_a_table_answers_as_the_package_with_its_corrections(tmp_path: Path) -> None:
    text = export_aisimulate(model="m", system="b200_sxm", engine="vllm", tensor_parallel=8)
    assert text.startswith("# aisimulate 0.13.0 (PyPI, Apache-2.0): m, b200_sxm, vllm, tp 8, dp 1")
    assert "prompts x 1.27, decodes x 1.08" in text
    (tmp_path / "t.csv").write_text(text)
    params = table_step_time(tmp_path / "t.csv")
    step = np.full(20, 1), np.full(20, 2999), 20
    expected = CORRECTIONS["vllm"].decode * 1e-3 * (4.0 + 0.2 + 20 * 3000 * 1e-6)
    assert step_seconds(params, *step) == pytest.approx(expected, rel=1e-4)
    plain = export_aisimulate(model="m", system="b200_sxm", engine="sglang")
    assert "# times as they are" in plain


@pytest.mark.usefixtures("package")
def test_what_the_package_does_not_know() -> None:
    with pytest.raises(KvsimError, match="has no times for unknown on x with trtllm: no such"):
        export_aisimulate(model="unknown", system="x", engine="tensorrt-llm")
    with pytest.raises(KvsimError, match="has measured no kernels of it: static timing requires"):
        export_aisimulate(model="unmeasured", system="x", engine="vllm")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aisimulate_core.sdk", None)
    with pytest.raises(KvsimError, match="aisimulate is not installed. Install it: pip install"):
        export_aisimulate(model="m", system="x", engine="vllm")
