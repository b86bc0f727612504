"""The machine: its GPUs, and how the engine divides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from kvsim import catalog
from kvsim.errors import UnknownNameError, show
from kvsim.scenario.fields import Bytes, Count, Fraction, Positive
from kvsim.scenario.validation import Section
from kvsim.units import parse_bytes, parse_bytes_per_s, parse_flops_per_s


def _gpu_form(value: object) -> str:
    return "given" if isinstance(value, Mapping | GivenGpu) else "named"


def _gpu(value: object) -> object:
    if not isinstance(value, str | Mapping | GivenGpu):
        raise ValueError(
            f"{show(value)} is no GPU. Name one of the catalog, or give "
            "{hbm: 48 GiB, bandwidth: 864 GB/s, bf16: 362 TFLOP/s}."
        )
    return value


def _capability(value: object) -> object:
    parts = str(value).split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{show(value)} is no compute capability. Write one as in '9.0'.")
    return str(value)


def _with_unit(parse: Callable[[object], float], example: str) -> Callable[[object], object]:
    """A quantity that means nothing without its unit."""

    def parsed(value: object) -> object:
        # Read again from a resolved scenario it is a plain number of the smallest unit.
        if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
            return parse(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1e9:
            return value
        raise ValueError(f"{show(value)} has no unit. Write one, as in '{example}'.")

    return parsed


_Hbm = Annotated[
    int,
    BeforeValidator(_with_unit(parse_bytes, "48 GiB"), json_schema_input_type=str),
    Field(gt=0, le=2**62),
]
_Bandwidth = Annotated[
    float,
    BeforeValidator(_with_unit(parse_bytes_per_s, "864 GB/s"), json_schema_input_type=str),
    Field(gt=0),
]
_Peak = Annotated[
    float,
    BeforeValidator(_with_unit(parse_flops_per_s, "362 TFLOP/s"), json_schema_input_type=str),
    Field(gt=0),
]


class GivenGpu(Section):
    """A GPU that is not in the catalog."""

    hbm: _Hbm = Field(description="memory that can be allocated, with a unit")
    bandwidth: _Bandwidth | None = Field(
        default=None, description="peak memory bandwidth, with a unit; for the roofline"
    )
    bf16: _Peak | None = Field(default=None, description="peak of BF16 without sparsity")
    fp8: _Peak | None = Field(default=None, description="peak of FP8 without sparsity")
    fp4: _Peak | None = Field(default=None, description="peak of FP4 without sparsity")
    compute_capability: Annotated[str, BeforeValidator(_capability)] | None = Field(
        default=None,
        description="CUDA compute capability, as in '9.0', which attention backends and so block "
        "sizes go by; null for Hopper's",
    )

    def spec(self) -> catalog.Gpu:
        """The same as an entry of the catalog, named ``custom``."""
        written = self.compute_capability
        major, _, minor = (written or "").partition(".")
        return catalog.Gpu(
            "custom",
            self.hbm,
            self.bandwidth or 0.0,
            fp8_flops_per_s=self.fp8,
            fp4_flops_per_s=self.fp4,
            bf16_flops_per_s=self.bf16,
            capability=(int(major), int(minor)) if written else None,
        )


def _catalog_gpu(value: str) -> str:
    if value not in catalog.gpu_names():
        raise UnknownNameError("GPU", value, catalog.gpu_names())
    return value


class Node(Section):
    """The machine, and how the engine divides it."""

    gpu: (
        Annotated[
            Annotated[str, AfterValidator(_catalog_gpu), Tag("named")]
            | Annotated[GivenGpu, Tag("given")],
            Discriminator(_gpu_form),
            BeforeValidator(_gpu),
        ]
        | None
    ) = Field(
        default=None,
        description="GPU of the catalog, or a mapping with hbm:, bandwidth: and peaks; needed for "
        "the roofline and to derive num_blocks",
    )
    gpus: Count = Field(default=1, description="number of GPUs of the node")
    tensor_parallel: Count | None = Field(
        default=None,
        description="GPUs that split a model's heads and weights; null for all that the other "
        "sizes leave",
    )
    pipeline_parallel: Count = Field(
        default=1,
        description="stages that split a model's layers, each a step of its own at a time",
    )
    data_parallel: Count = Field(
        default=1, description="ranks of the engine, each with a cache and requests of its own"
    )
    expert_parallel: bool = Field(
        default=False,
        description="true: GPUs hold whole experts; false: a part of each. Timing alone: a GPU "
        "holds its share of them all either way",
    )
    decode_context_parallel: Count = Field(
        default=1,
        description="tensor-parallel GPUs that split the tokens of full attention and of latents",
    )
    gpu_memory_utilization: Fraction = Field(
        default=0.92,
        description="fraction of allocatable GPU memory the engine takes (its own default)",
    )
    activation_reserve: Bytes | None = Field(
        default=None,
        description="memory per GPU for libraries, sampling, activations and graphs; null derives "
        "it from the model's widths and the largest step",
    )
    num_blocks: Annotated[int, Field(ge=2, le=2**24)] | None = Field(
        default=None,
        description="size of the block pool, block 0 included; null derives it from memory",
    )
    cost_per_gpu_hour: Positive | None = Field(
        default=None, description="price of a GPU for an hour, in any currency; null for none"
    )
