"""From a model's config.json to the engine's KV cache: layers, block size, groups, bytes, fit.

Each file does one step of the engine's planning (vLLM 0.33.0): `config` reads the file, `families`
and `states` list the layers, `backends` and `blocks` choose block sizes, `groups` groups layers,
`fit` counts blocks and `units` says in what unit prefixes are found again; `plan` is the whole.
`parameters` counts weights and FLOPs.
May come in: the ground alone.
"""
