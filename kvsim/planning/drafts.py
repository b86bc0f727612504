"""What the layers of a model's own drafter (MTP) hold.

Only families whose planning was recorded with drafts are known.
"""

from __future__ import annotations

from collections.abc import Callable

from kvsim.errors import KvsimError
from kvsim.planning import families, layers
from kvsim.planning.config import Config
from kvsim.planning.layers import Layer


def draft_layers_of(config: Config) -> list[Layer]:
    """The layers of the model's own drafter (MTP), numbered behind the model's.

    Raises:
        KvsimError: it has none, or how they are made is not known.
        Problems: as for `layers_of`.
    """
    family, number = families.family_of(config), config.num_layers
    modules = num_draft_modules(config)
    if not modules:
        raise KvsimError(
            f"{config.where}: has no MTP layers to draft with (num_nextn_predict_layers, "
            "mtp_num_hidden_layers). Leave draft tokens out."
        )
    if family not in _DRAFTS or modules > 1:
        known = ", ".join(
            sorted({name for name, made in families.FAMILIES.items() if made in _DRAFTS})
        )
        raise KvsimError(
            f"{config.where}: what the {modules} MTP layers of {config.architecture} hold is not "
            f"known. Known, with one layer: {known}."
        )
    drafts = _DRAFTS[family](config, number)
    config.raise_problems()
    return [layer.as_draft(number) for layer in drafts]


def has_known_drafts(config: Config) -> bool:
    """Whether what the model's own drafter holds is known; of other drafters it never is."""
    return num_draft_modules(config) == 1 and families.family_of(config) in _DRAFTS


def num_draft_modules(config: Config) -> int:
    """MTP layers that come with the checkpoint."""
    return config.count("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)


def _one_full(config: Config, number: int) -> list[Layer]:
    return [layers.full(number, config.kv_heads, config.head_size)]


def _one_latent(config: Config, number: int) -> list[Layer]:
    return [layers.latent(number, families.latent_size(config))]


def _indexed_latent(config: Config, number: int) -> list[Layer]:
    return [layers.indexer(number, config.count("index_head_dim")), *_one_latent(config, number)]


def _one_window_v4(config: Config, number: int) -> list[Layer]:
    return layers.deepseek_v4(number, 0, config.head_size, config.count("index_head_dim"))


_DRAFTS: dict[families.Family, Callable[[Config, int], list[Layer]]] = {
    families.mla: _one_latent,
    families.sparse_mla: _indexed_latent,
    families.deepseek_v4: _one_window_v4,
    families.qwen_hybrid: _one_full,
    families.nemotron_h: _one_full,
}
"""What one MTP layer holds, where the engine's planning was recorded with it."""
