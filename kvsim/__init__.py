"""kvsim: a discrete-event simulator of prefix-cache eviction on multi-GPU LLM serving nodes."""

__version__ = "0.1.0"
