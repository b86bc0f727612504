"""Requests written down in the scenario: content by name, answers that later prompts contain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator

from kvsim.cache.content import Content
from kvsim.policies.facts import NOT_GIVEN
from kvsim.scenario import ScriptWorkload
from kvsim.scenario.fields import TOKENS_MAX
from kvsim.workload.request import Request, Workload


class ContentNames:
    """Uids for named content: one for each name after each different content before it.

    What stands before a span is known by the uid of the span before it and by the position at
    which the new one starts, so a name gets the same uid exactly where everything before it is the
    same too. `[[A, 1000]]` and `[[A, 600], [B, 9]]` share 600 tokens.
    """

    def __init__(self) -> None:
        """Start without names."""
        self._uids: dict[tuple[Hashable, int | None, int], int] = {}

    def uid(self, name: Hashable, uid_before: int | None, position: int) -> int:
        """The uid of a name that starts at a token position behind the span of another uid."""
        return self._uids.setdefault((name, uid_before, position), len(self._uids))

    def spans(self, prompt: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
        """The `(uid, tokens)` of a prompt given as `(name, tokens)`, each of 1 token or more."""
        spans: list[tuple[int, int]] = []
        uid_before, position = None, 0
        for name, num_tokens in prompt:
            uid_before = self.uid(name, uid_before, position)
            spans.append((uid_before, num_tokens))
            position += num_tokens
        return spans


def open_script(config: ScriptWorkload) -> Workload:
    """Open a script: requests by arrival (`at_s`, ties in the order given).

    With `concurrency` they stay in the order given, and each waits for the one before. Requests
    are numbered from 1 in the order given.
    """
    requests = _requests(config)
    if config.concurrency is None:
        requests.sort(key=lambda request: request.arrival_s)
    num_read = 0

    def stream() -> Iterator[Request]:
        nonlocal num_read
        for request in requests:
            num_read += 1
            yield request

    return Workload(
        requests=stream(),
        concurrency=config.concurrency,
        share_read=lambda: num_read / max(1, len(requests)),
    )


def _requests(config: ScriptWorkload) -> list[Request]:
    names = ContentNames()
    requests = []
    for number, asked in enumerate(config.requests, start=1):
        spans = names.spans(asked.prompt)
        content = Content.from_spans(spans)
        # An answer without a name is content that never comes again: its number is its name.
        output_name = number if asked.output_name is None else asked.output_name
        requests.append(
            Request(
                request_id=f"{number:07d}",
                arrival_s=asked.at_s,
                content=content,
                num_prompt_tokens=content.num_tokens,
                num_output_tokens=asked.output,
                output_uid=names.uid(output_name, spans[-1][0], content.num_tokens),
                priority=asked.priority,
                keep_priority=NOT_GIVEN if asked.keep_priority is None else asked.keep_priority,
                keep_tokens=asked.keep_tokens or TOKENS_MAX,
                keep_s=math.inf if asked.keep_s is None else asked.keep_s,
            )
        )
    return requests
