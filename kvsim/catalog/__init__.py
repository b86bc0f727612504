"""The catalog: GPUs, models and links by name, every number with its source.

Models are public configs (``configs/*.json``), from which groups, weights and work are derived for
the settings in force; ``models.yaml`` has what was measured or published besides, and models
without a config. GPUs and links are in ``gpus.yaml`` and ``links.yaml``. Each number stands beside
a ``source`` or an ``assumption``; what is read keeps both, so that a report can say where a number
is from. A file of the user's own, named by ``KVSIM_CATALOG``, adds to all of them.
May come in: planning and the ground.
"""

from __future__ import annotations

from kvsim.catalog.entries import (
    PRECISIONS,
    AttentionTerm,
    Gpu,
    KVGroup,
    KVRead,
    LinkSpec,
    Model,
)
from kvsim.catalog.lookup import (
    gpu,
    gpu_names,
    link,
    link_names,
    model,
    model_from_config,
    model_from_layers,
    model_names,
    model_source,
    step_times,
)

__all__ = [
    "PRECISIONS",
    "AttentionTerm",
    "Gpu",
    "KVGroup",
    "KVRead",
    "LinkSpec",
    "Model",
    "gpu",
    "gpu_names",
    "link",
    "link_names",
    "model",
    "model_from_config",
    "model_from_layers",
    "model_names",
    "model_source",
    "step_times",
]
