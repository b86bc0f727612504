"""kvsim: a discrete-event simulator of prefix-cache eviction on multi-GPU LLM serving nodes.

What it offers to programs is `__all__`; everything is imported when it is first used, so that
``import kvsim`` is quick and plots are loaded by those who draw.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Modules are not named like the functions they hold: importing a module `kvsim.run` would put it
# in the place of the function `kvsim.run`.
_WHERE = {
    "Comparison": "kvsim.study.comparison",
    "FindResult": "kvsim.study.search",
    "KvsimError": "kvsim.errors",
    "RunResult": "kvsim.results.store",
    "Scenario": "kvsim.scenario",
    "SweepResult": "kvsim.study.sweep_table",
    "compare": "kvsim.study.comparison",
    "find": "kvsim.api",
    "load_result": "kvsim.results.store",
    "load_scenario": "kvsim.scenario.reading",
    "load_sweep": "kvsim.study.sweep_table",
    "node_capacity": "kvsim.study.node_capacity",
    "run": "kvsim.api",
    "sweep": "kvsim.api",
}

__all__ = [
    "Comparison",
    "FindResult",
    "KvsimError",
    "RunResult",
    "Scenario",
    "SweepResult",
    "__version__",
    "compare",
    "find",
    "load_result",
    "load_scenario",
    "load_sweep",
    "node_capacity",
    "plots",
    "run",
    "sweep",
]

if TYPE_CHECKING:
    from kvsim import plots
    from kvsim.api import find, run, sweep
    from kvsim.errors import KvsimError
    from kvsim.results.store import RunResult, load_result
    from kvsim.scenario import Scenario
    from kvsim.scenario.reading import load_scenario
    from kvsim.study.comparison import Comparison, compare
    from kvsim.study.node_capacity import node_capacity
    from kvsim.study.search import FindResult
    from kvsim.study.sweep_table import SweepResult, load_sweep


def __getattr__(name: str) -> object:
    """Import what is asked for; what was imported once is found without coming here."""
    if name == "plots":
        return import_module("kvsim.plots")
    if name not in _WHERE:
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
    value: object = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What is offered, for completion."""
    return sorted({*globals(), *__all__})
