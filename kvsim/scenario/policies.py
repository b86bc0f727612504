"""Keys whose value is a policy: a name, or a mapping with a name and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvsim.errors import UnknownNameError, show
from kvsim.policies.contract import FREE_QUEUE, HOST_EVICTION, KEYS, RETENTION
from kvsim.policies.finding import ENGINE_NAMES, find_policy, known_policies
from kvsim.policies.table import TABLE

POLICY_KEYS = {
    "cache.free_queue": FREE_QUEUE,
    "cache.retention": RETENTION,
    "offload.eviction": HOST_EVICTION,
}
"""Dotted keys of policies, and the kind of each."""

Setting = str | dict[str, Any]


def policy_setting(kind: str, *own: str, or_none: bool = False) -> Callable[[object], object]:
    """A check of what is written for a policy; code that is not kvsim's is not looked at.

    Args:
        kind: of policy.
        own: names with a meaning of their own at this key.
        or_none: null is fine.
    """

    def check(value: object) -> object:
        if value is None and or_none:
            return None
        builtin = (*ENGINE_NAMES.get(kind, ()), *TABLE[kind])
        if isinstance(value, Mapping):
            name = value.get("name")
            if name in ENGINE_NAMES.get(kind, ()):
                raise ValueError(f"{show(name)} has no parameters. Write the name alone.")
        else:
            name = value
        if not isinstance(value, str | Mapping):
            choices = ", ".join((*own, *builtin))
            raise ValueError(f"{show(value)} is no {KEYS[kind]}. Choices: {choices}.")
        if not isinstance(name, str):
            raise ValueError("has no name. Write one, as in {name: lfu, half_life: 60 s}.")
        if name in TABLE[kind]:
            find_policy(kind, value)  # which checks the parameters
        elif name not in (*own, *builtin) and ":" not in name and name not in known_policies(kind):
            raise UnknownNameError(KEYS[kind], name, (*own, *builtin))
        return value

    return check


def setting_name(setting: Setting) -> str:
    """A policy in a few words: ``lfu (half_life 60 s)``."""
    if isinstance(setting, str):
        return setting.rpartition(":")[2]
    told = ", ".join(f"{key} {value}" for key, value in setting.items() if key != "name")
    short = str(setting["name"]).rpartition(":")[2]
    return f"{short} ({told})" if told else short


def with_policy_path(setting: Any, change: Callable[[str], str]) -> Any:
    """What is written for a policy or a router, with the path of its file changed."""
    if isinstance(setting, Mapping):
        named = "kind" if "kind" in setting else "name"  # a router's, a policy's
        return {**setting, named: with_policy_path(setting.get(named), change)}
    if isinstance(setting, str) and ".py:" in setting:
        file, _, name = setting.rpartition(":")
        return f"{change(file)}:{name}"
    return setting
