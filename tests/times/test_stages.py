"""Step times of the stages of a pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim import catalog
from kvsim.planning.plan import layers_of_stages
from kvsim.times.roofline import roofline, roofline_stages
from kvsim.times.stages import stage_times
from kvsim.times.step_time import compose, composed_parts, constant_step_time
from kvsim.times.work import Layout


def test_layers_that_do_not_divide_go_before_the_last_stage() -> None:
    assert layers_of_stages(80, 4) == (20, 20, 20, 20)
    assert layers_of_stages(62, 4) == (15, 16, 16, 15)
    assert sum(layers_of_stages(61, 8)) == 61


def test_a_constant_step_is_shared_by_layers() -> None:
    stages = stage_times(constant_step_time(0.3, 0.001), [1, 2])
    one, none = np.array([10], dtype=np.int64), np.array([0], dtype=np.int64)
    held = compose(stages[0], one, none, 1)
    assert [sum(composed_parts(stage.scalars, held)) for stage in stages] == [
        pytest.approx(0.1 + 0.01 / 3),
        pytest.approx(0.2 + 0.02 / 3),
    ]


def test_stages_together_pay_for_the_layers_once_and_for_a_step_each() -> None:
    model, gpu, layout = catalog.model("llama-3.1-70b"), catalog.gpu("h100"), Layout(4)
    whole = roofline(model, gpu, layout)
    options = {"engine": "vllm", "asynchronous": True, "constants": None, "override": {}}
    stages = roofline_stages(model, gpu, layout, whole, 2, **options)  # type: ignore[arg-type]
    tokens, context = np.array([512, 1], np.int64), np.array([0, 4000], np.int64)
    held = compose(whole, tokens, context, 2)
    of_all = composed_parts(whole.scalars, held)
    of_each = [composed_parts(stage.scalars, held) for stage in stages]
    for part, name in ((2, "dense"), (3, "head"), (5, "attention"), (6, "prompt attention")):
        assert sum(parts[part] for parts in of_each) == pytest.approx(of_all[part]), name
    assert of_each[0][3] == 0.0, "the output head is on the last stage"
    assert sum(of_all) < sum(map(sum, of_each)) < 1.2 * sum(of_all)
