"""A trace with a request a row, and the way from its rows to requests and sessions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import Problems
from kvsim.scenario.fields import TOKENS_MAX
from kvsim.workload.conversation import Conversation
from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.contents import SharedTails, TraceUids
from kvsim.workload.traces.record import Row, shown
from kvsim.workload.traces.rows import Rows
from kvsim.workload.traces.trace import BadLines, Notices, TraceOptions


class RowFormat(Protocol):
    """A format with a request a row; an instance reads one file once.

    Attributes:
        name: of the format.
        time_names: keys that may hold a row's time.
    """

    name: str
    time_names: tuple[str, ...]

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""

    def seconds(self, time: Any) -> float | None:
        """A time as the file has it, in seconds; None where it is none."""


@dataclass(frozen=True, slots=True)
class RowReading:
    """How a file with a request a row is read.

    Attributes:
        make_format: makes the reader of its rows, anew for each pass.
        open_rows: opens the file, anew for each pass.
        block_tokens: tokens an id stands for; None where there are no ids.
        block_tokens_from: who says so, as in `Trace`.
        has_sessions: whether rows name sessions.
        adds_only: a later turn of a session says only what it adds to the turn before and its
            answer.
        ids_may_differ: a prompt may have fewer or more ids than blocks.
        by_end: rows are in the order in which requests ended, so sorting them is no notice.
        starts_recorded: whether sessions begin with a time; else the scenario says when.
        timed: whether all rows have times; turns come after the one before otherwise.
        clock: what times are counted from; None where there are none.
        block_keys: keys in which a row may say what its ids stand for.
        warnings: what the format cannot show.
    """

    make_format: Callable[[], RowFormat]
    open_rows: Callable[[], Rows]
    block_tokens: int | None
    block_tokens_from: str
    has_sessions: bool
    adds_only: bool = False
    ids_may_differ: bool = False
    by_end: bool = False
    starts_recorded: bool = True
    timed: bool = True
    clock: Clock | None = None
    block_keys: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RowTrace:
    """A trace with a request a row; see `Trace`."""

    def __init__(self, reading: RowReading, options: TraceOptions) -> None:
        """Open the file and read its first request.

        Raises:
            KvsimError: the file cannot be read, or its first request is wrong.
        """
        self.format = reading.make_format().name
        self.block_tokens = reading.block_tokens
        self.block_tokens_from = reading.block_tokens_from
        self.has_sessions = reading.has_sessions
        self.timed = reading.timed
        self.starts_recorded = reading.starts_recorded
        self.time_unit = None if reading.clock is None else reading.clock.unit
        self._reading = reading
        self._options = options
        self._notices = Notices()
        self._tails: SharedTails | None = None
        self._num_read = self._num_good = 0
        self._rows = reading.open_rows()
        self.shown = self._rows.shown
        self._bad = self._no_bad_lines()
        if options.reuse is not None and reading.block_tokens is not None:
            problem = f"reuse: format {self.format} says what prompts share. Leave it out."
            raise Problems(self.shown, [problem])
        if options.skip_bad:
            for _ in self._checked(reading.open_rows(), in_order=False, limit=options.limit):
                pass
            self._notices = Notices()
        # The first request now, so that a useless file is refused before anything is simulated.
        self._opened: Iterator[tuple[Request, Row]] | None = self._requests_and_rows()
        self._opened = chain([next(self._opened)], self._opened)

    @property
    def warnings(self) -> list[str]:
        """What was put right so far, and what the trace cannot show."""
        name = Path(self.shown).name
        reading = self._reading
        general = (
            [] if reading.clock is None or reading.clock.said is None else [reading.clock.said]
        )
        sentences = [f"{name}: {warning}" for warning in (*general, *reading.warnings)]
        sentences += self._bad.sentences(name, self._num_good)
        sentences += self._notices.sentences(name)
        if self.block_tokens is None and self._options.reuse is None:
            sentences.insert(
                0,
                f"{name}: the trace has lengths only and no reuse is drawn, so no prefix is "
                "ever found again.",
            )
        return sentences

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""
        limit = self._options.limit
        by_limit = 0.0 if limit is None else min(1.0, self._num_read / limit)
        return max(by_limit, self._rows.share_read())

    def requests(self) -> Iterator[Request]:
        """Requests by recorded time.

        Raises:
            KvsimError: a request without a time, and while reading, the first bad rows.
        """
        for request, row in self._begin():
            if row.time_s is None:
                problem = (
                    f"line {int(request.request_id)}: timestamp: missing. Without it this turn "
                    "can only start after the one before: use sessions.loop closed, or open to "
                    "count its delay from the arrival of that one."
                )
                raise Problems(self.shown, [problem])
            yield request

    def sessions(self) -> Iterator[Session]:
        """Sessions by their recorded start; read in two passes.

        A session is given when its last row has been read, so those that began after a long one
        wait for it in memory.

        Raises:
            KvsimError: while reading, the first bad rows.
        """
        num_left = self._num_rows_by_session()
        waiting: dict[str, _OpenSession] = {}
        for request, row in self._begin():
            session_id = row.session_id or request.request_id
            if session_id not in waiting:
                start_s = request.arrival_s if self.starts_recorded else None
                waiting[session_id] = _OpenSession(session_id, start_s)
            waiting[session_id].add(request, row, self._options.time_scale)
            num_left[session_id] -= 1
            while waiting and num_left[next(iter(waiting))] <= 0:
                yield waiting.pop(next(iter(waiting))).session
        yield from (left.session for left in waiting.values())

    def _num_rows_by_session(self) -> Counter[str]:
        """Rows of each session in the whole file; good rows alone count."""
        row_format, num_rows = self._reading.make_format(), Counter[str]()
        try:
            for _, fields in self._reading.open_rows():
                row = None if isinstance(fields, str) else row_format.parse(fields)
                if isinstance(row, Row) and row.session_id is not None:
                    num_rows[row.session_id] += 1
        except Problems:
            pass  # said when the rows are read in earnest
        return num_rows

    def _begin(self) -> Iterator[tuple[Request, Row]]:
        """What was opened, or another pass over the file."""
        opened, self._opened = self._opened, None
        if opened is None:
            self._rows = self._reading.open_rows()
            self._notices = Notices()
            opened = self._requests_and_rows()
        self._num_read = 0
        for request_and_row in opened:
            self._num_read += 1
            yield request_and_row

    def _requests_and_rows(self) -> Iterator[tuple[Request, Row]]:
        if not self._options.shared_tails or self.block_tokens is None:
            yield from self._as_recorded(self._rows)
            return
        if self._tails is None:
            every_row = self._as_recorded(self._reading.open_rows())
            self._tails = SharedTails(
                self.block_tokens,
                (request for request, _ in every_row),
                own_is_known=self._reading.adds_only,
            )
            self._notices = Notices()
        for request, row in self._as_recorded(self._rows):
            request.content = self._tails.content(request)
            yield request, row

    def _as_recorded(self, rows: Rows) -> Iterator[tuple[Request, Row]]:
        options, uids = self._options, TraceUids()
        block_tokens = self.block_tokens or 1
        adds_only = self._reading.adds_only
        draw_reuse = None if options.reuse is None else options.reuse.contents()
        said: dict[str, tuple[Conversation, Request]] = {}
        num_left = self._num_rows_by_session() if adds_only else Counter[str]()
        for number, row in self._ordered(rows):
            own_uid = uids.own()
            time_s = options.start_s if row.time_s is None else row.time_s
            num_tokens = row.num_prompt_tokens
            if adds_only and row.session_id in said:
                conversation, before = said[row.session_id]
                conversation.append(before.output_uid, before.num_output_tokens)
                conversation.append(own_uid, num_tokens)
                content, num_tokens = conversation.content(), conversation.num_tokens
            else:
                content = uids.content(row.ids, num_tokens, block_tokens, own_uid)
            for content_id in row.answer_ids or ():
                uids.name(content_id, own_uid)
            if draw_reuse is not None:
                content = draw_reuse(num_tokens, own_uid)
            request = Request(
                f"{number:07d}",
                (time_s - options.start_s) * options.time_scale,
                content,
                num_tokens,
                row.num_output_tokens or 1,
                own_uid,
                row.session_id,
                keep_priority=row.keep_priority,
                keep_tokens=TOKENS_MAX if row.keep_tokens is None else row.keep_tokens,
                keep_s=row.keep_s,
            )
            if adds_only and row.session_id is not None:
                before_it = said.pop(row.session_id, None)
                num_left[row.session_id] -= 1
                if num_left[row.session_id] > 0:
                    conversation = Conversation(content) if before_it is None else before_it[0]
                    said[row.session_id] = (conversation, request)
            yield request, row

    def _ordered(self, rows: Rows) -> Iterator[tuple[int, Row]]:
        """Rows by time, as many as are wanted."""
        options = self._options
        by_end = self._reading.by_end
        late = None if options.strict and not by_end else self._first_late_row()
        if late is None:
            yield from self._checked(rows, in_order=True, limit=options.limit)
            return
        everything = list(self._checked(rows, in_order=False, limit=None))
        # A row without a time stays behind the one above it.
        times, before_s = [], 0.0
        for _, row in everything:
            before_s = before_s if row.time_s is None else row.time_s
            times.append(before_s)
        order = sorted(range(len(times)), key=times.__getitem__)
        if not by_end:
            self._notices.add("times out of order, so the requests were sorted by time", late)
        yield from (everything[place] for place in order[: options.limit])

    def _first_late_row(self) -> str | None:
        """The first row whose time is before that of a row above; None where all are in order."""
        row_format, rows = self._reading.make_format(), self._reading.open_rows()
        before_s = -math.inf
        try:
            for number, time in rows.times(row_format.time_names):
                time_s = row_format.seconds(time)
                if time_s is None:
                    continue
                if time_s < before_s:
                    return f"{rows.word} {number}"
                before_s = time_s
        except Problems:
            pass  # said when the rows are read in earnest
        return None

    def _no_bad_lines(self) -> BadLines:
        return BadLines(self.shown, self._rows.word, skip=self._options.skip_bad)

    def _checked(
        self, rows: Rows, *, in_order: bool, limit: int | None
    ) -> Iterator[tuple[int, Row]]:
        """Yield good rows; from the first bad one on only look for more problems, then raise."""
        options, row_format = self._options, self._reading.make_format()
        self._bad = bad = self._no_bad_lines()
        unfinished = _Unfinished() if self._reading.adds_only else None
        number = num_good = num_replayed = 0
        before_s, last_s = -math.inf, 0.0
        try:
            for number, fields in rows:
                row = [fields] if isinstance(fields, str) else row_format.parse(fields)
                if isinstance(row, list) or isinstance(fields, str):
                    found = list(row) if isinstance(row, list) else []
                else:
                    found = self._row_problems(row, fields, before_s if in_order else -math.inf)
                    if unfinished is not None and not found:
                        found = unfinished.problems(row)
                if found or isinstance(row, list):
                    bad.add(f"{rows.word} {number}", found)
                    if unfinished is not None:
                        unfinished.add(fields)
                    if bad.is_full:
                        break
                    continue
                self._num_good = num_good = num_good + 1
                if row.time_s is not None:
                    before_s = last_s = row.time_s
                if unfinished is not None and unfinished.is_left_out(row, options.start_s):
                    continue
                if row.time_s is not None and row.time_s < options.start_s:
                    continue
                num_replayed += 1
                if not row.num_output_tokens:
                    self._notices.add(
                        "answers without a recorded length taken as 1 token"
                        if row.num_output_tokens is None
                        else "answers of 0 tokens taken as 1, the least the engine makes",
                        f"{rows.word} {number}",
                    )
                if not bad.problems:
                    yield number, row
                if num_replayed == limit:
                    break
        except Problems as unreadable:
            bad.problems += unreadable.problems
        if bad.problems:
            raise Problems(self.shown, bad.problems)
        bad.check_share(num_good)
        if number == 0:
            text = f"{rows.word} 1: the trace is empty. It needs at least one request."
            raise Problems(self.shown, [text])
        if num_replayed == 0:
            rule = f"no request at or after start_s ({options.start_s:g} s)"
            problem = f"{rows.word} {number}: {rule}; the last one is at {last_s:g} s."
            raise Problems(self.shown, [f"{problem} Choose an earlier start_s."])

    def _row_problems(self, row: Row, fields: dict[str, Any], before_s: float) -> list[str]:
        problems = []
        if row.time_s is not None and row.time_s < before_s:
            problems.append(
                f"timestamp: {row.time_s:.15g} s is before the {before_s:.15g} s of the request "
                "above. Sort the trace by time, or leave out strict."
            )
        if not row.num_output_tokens and self._options.strict:
            what = "no length" if row.num_output_tokens is None else "0 tokens"
            problems.append(f"an answer of {what}. Remove the line, or leave out strict.")
        block_tokens = self.block_tokens
        if block_tokens is None:
            return problems
        for key in self._reading.block_keys:
            if fields.get(key, block_tokens) != block_tokens:
                problems.append(
                    f"{key}: {shown(fields[key])}, where an id of this trace stands for "
                    f"{block_tokens} tokens. Keep rows of one size in a file."
                )
        if row.ids is None or self._reading.ids_may_differ:
            return problems
        expected = -(-row.num_prompt_tokens // block_tokens)
        if len(row.ids) != expected:
            problems.append(
                f"hash_ids: {len(row.ids)} ids for {row.num_prompt_tokens} tokens, where one id "
                f"for every {block_tokens} tokens makes {expected}. Correct the line, or give "
                "the block_tokens of this trace."
            )
        return problems


class _Unfinished:
    """Sessions of which a turn is missing, so that later ones do not say what they add to."""

    def __init__(self) -> None:
        self._broken: set[str] = set()
        self._left_out: set[str] = set()
        self._begun: set[str] = set()

    def add(self, fields: Any) -> None:
        """The row of a turn that cannot be used."""
        if isinstance(fields, dict) and fields.get("session_id") is not None:
            self._broken.add(str(fields["session_id"]))

    def problems(self, row: Row) -> list[str]:
        """Why a turn cannot be used though nothing is wrong with its row."""
        if row.session_id in self._broken:
            return ["an earlier turn of this session cannot be used, to which this one adds."]
        return []

    def is_left_out(self, row: Row, start_s: float) -> bool:
        """Whether the session began before the start, and so is left out as a whole."""
        session_id = row.session_id
        if session_id is None:
            return False
        if session_id not in self._begun and row.time_s is not None and row.time_s < start_s:
            self._left_out.add(session_id)
        if start_s:
            self._begun.add(session_id)
        return session_id in self._left_out


class _OpenSession:
    """A session whose rows are being read."""

    def __init__(self, session_id: str, start_s: float | None) -> None:
        self.session = Session(session_id, start_s, [], timed=start_s is not None)
        self._turns: dict[str, int] = {}

    def add(self, request: Request, row: Row, time_scale: float) -> None:
        """Add the turn of a row."""
        session = self.session
        start_s = session.start_s or 0.0
        before = len(session.turns) - 1 if row.parent is None else self._turns.get(row.parent, -1)
        if row.name is not None:
            self._turns[row.name] = len(session.turns)
        previous_s = session.turns[before].request.arrival_s if before >= 0 else 0.0
        if row.time_s is None:
            session.timed = False
            request.arrival_s = previous_s + (row.delay_s or 0.0) * time_scale
        else:
            request.arrival_s -= start_s
        if before < 0:
            session.turns.append(Turn(request, (), request.arrival_s))
            return
        if row.delay_s is not None:
            delay_s = row.delay_s * time_scale
        else:
            delay_s = max(0.0, request.arrival_s - previous_s)
            session.delays_recorded = session.delays_recorded and row.time_s is None
        session.turns.append(Turn(request, (After(before, delay_s),)))
