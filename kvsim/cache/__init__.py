"""The cache core: what the engine's KV cache manager decides, without clock, events or I/O."""
