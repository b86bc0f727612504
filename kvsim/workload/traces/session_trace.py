"""A trace with a session a line, and the way from its lines to sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import Problems
from kvsim.workload.request import Request, Session
from kvsim.workload.sessions import in_open_loop, with_starts
from kvsim.workload.traces.contents import SharedTails, TraceUids
from kvsim.workload.traces.record import LeaveOut
from kvsim.workload.traces.rows import Rows
from kvsim.workload.traces.trace import MAX_PROBLEMS, BadLines, Notices, TraceOptions


class SessionFormat(Protocol):
    """A format with a session a line; an instance reads one file once.

    Attributes:
        name: of the format.
        number: of the line that is read, set before `parse`.
        leave_out: set where bad requests are to be left out of their session, not refused.
    """

    name: str
    number: int
    leave_out: LeaveOut | None

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """The sessions of a line, or everything that is wrong with it.

        Request ids and starts of sessions are as the file has them, times unscaled; an output
        length of 0 is left as it is.
        """

    def end(self) -> list[Session] | list[tuple[int, str]]:
        """Sessions that only the end of the file completes, or problems and their lines."""


@dataclass(frozen=True, slots=True)
class SessionReading:
    """How a file with a session a line is read.

    Attributes:
        make_format: makes the reader of its lines, anew for each pass.
        open_rows: opens the file, anew for each pass.
        block_tokens: tokens an id stands for; None where content is exact.
        block_tokens_from: who says so, as in `Trace`.
        starts_recorded: whether it is recorded when sessions start.
        timed: whether all turns have a recorded time.
        time_unit: in which the file has its times.
        warnings: what the format cannot show.
    """

    make_format: Callable[[], SessionFormat]
    open_rows: Callable[[], Rows]
    block_tokens: int | None
    block_tokens_from: str
    starts_recorded: bool
    timed: bool
    time_unit: str | None = None
    warnings: tuple[str, ...] = ()


class SessionTrace:
    """A trace with a session a line; see `Trace`."""

    has_sessions = True

    def __init__(self, reading: SessionReading, options: TraceOptions) -> None:
        """Open the file and read its first session.

        Raises:
            KvsimError: the file cannot be read, or its first session is wrong.
        """
        self.format = reading.make_format().name
        self.block_tokens = reading.block_tokens
        self.block_tokens_from = reading.block_tokens_from
        self.starts_recorded = reading.starts_recorded
        self.timed = reading.timed
        self.time_unit = reading.time_unit
        self._reading = reading
        self._options = options
        self._notices = Notices()
        self._tails: SharedTails | None = None
        self._rows = reading.open_rows()
        self.shown = self._rows.shown
        self._bad = self._no_bad_lines()
        self._num_good = 0
        if options.time_unit not in ("auto", reading.time_unit):
            has = reading.time_unit
            said = f"says that its times are in {has}" if has else "has no times of its own"
            problem = f"time_unit: {options.time_unit}, but format {self.format} {said}."
            raise Problems(self.shown, [f"{problem} Leave it out."])
        if options.start_s and not reading.starts_recorded:
            problem = f"start_s: {options.start_s:g} s, but when sessions start is not recorded."
            raise Problems(self.shown, [f"{problem} Leave it out."])
        if options.reuse is not None:
            problem = f"reuse: format {self.format} says what prompts share. Leave it out."
            raise Problems(self.shown, [problem])
        if options.skip_bad:
            for _ in self._scaled(self._checked(reading.open_rows())):
                pass
            self._notices = Notices()
        self._opened: Iterator[Session] | None = self._read(self._rows)
        self._opened = chain([next(self._opened)], self._opened)

    @property
    def warnings(self) -> list[str]:
        """What was put right so far, and what the trace cannot show."""
        name = Path(self.shown).name
        general = [f"{name}: {warning}" for warning in self._reading.warnings]
        left_out = self._bad.sentences(name, self._num_good)
        return [*general, *left_out, *self._notices.sentences(name)]

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""
        return self._rows.share_read()

    def requests(self) -> Iterator[Request]:
        """Requests by recorded time.

        Raises:
            KvsimError: starts or times of turns are not recorded; while reading, bad lines.
        """
        if not self.timed:
            text = (
                "the times of turns are not recorded, only delays. Use sessions.loop closed, or "
                "open to count a turn's delay from the arrival of the one before."
            )
            raise Problems(self.shown, [text])
        return in_open_loop(with_starts(self.sessions(), None, 0, self.shown))

    def sessions(self) -> Iterator[Session]:
        """Sessions as the file has them, or by their start where that is recorded.

        Raises:
            KvsimError: while reading, the first bad lines.
        """
        opened, self._opened = self._opened, None
        if opened is None:
            self._rows = self._reading.open_rows()
            self._notices = Notices()
            opened = self._read(self._rows)
        return opened

    def _read(self, rows: Rows) -> Iterator[Session]:
        sessions = self._scaled(self._checked(rows))
        if not self._options.shared_tails or self.block_tokens is None:
            yield from sessions
            return
        if self._tails is None:
            every_session = self._checked(self._reading.open_rows())
            every_turn = (turn.request for session in every_session for turn in session.turns)
            self._tails = SharedTails(self.block_tokens, every_turn)
            self._notices = Notices()
        for session in sessions:
            for turn in session.turns:
                turn.request.content = self._tails.content(turn.request)
            yield session

    def _scaled(self, sessions: Iterator[Session]) -> Iterator[Session]:
        """Sessions as many and as fast as wanted."""
        options, num_left = self._options, self._options.limit
        scale = options.time_scale
        for session in sessions:
            if session.start_s is not None:
                if session.start_s < options.start_s:
                    continue
                session.start_s = (session.start_s - options.start_s) * scale
            if num_left is not None:
                session.turns = session.turns[:num_left]
                num_left -= len(session.turns)
            for turn in session.turns:
                request = turn.request
                request.num_output_tokens = request.num_output_tokens or 1
                if scale != 1.0:
                    request.arrival_s *= scale
                    turn.not_before_s *= scale
                    turn.after = tuple(
                        replace(after, delay_s=after.delay_s * scale) for after in turn.after
                    )
            yield session
            if num_left == 0:
                return

    def _no_bad_lines(self) -> BadLines:
        return BadLines(self.shown, "request", skip=self._options.skip_bad)

    def _checked(self, rows: Rows) -> Iterator[Session]:
        """Good sessions; from the first bad line on only look for more problems, then raise."""
        line_format, uids = self._reading.make_format(), TraceUids()
        self._bad = bad = self._no_bad_lines()
        self._num_good = number = num_sessions = 0
        if self._options.skip_bad:
            line_format.leave_out = lambda problem: bad.add(f"{rows.word} {number}", [problem])
        try:
            for number, fields in rows:
                line_format.number = number
                found = [fields] if isinstance(fields, str) else line_format.parse(fields, uids)
                wrong = [one for one in found if isinstance(one, str)]
                if wrong:
                    bad.add(f"{rows.word} {number}", wrong)
                    if bad.is_full:
                        break
                for one in found:
                    if isinstance(one, Session):
                        num_sessions += 1
                        if self._is_good(one, f"{rows.word} {number}"):
                            yield one
            if not bad.problems:
                for session in line_format.end():
                    if isinstance(session, tuple):
                        bad.problems.append(f"{rows.word} {session[0]}: {session[1]}")
                        continue
                    num_sessions += 1
                    if self._is_good(session, f"session {session.session_id}"):
                        yield session
        except Problems as unreadable:
            bad.problems += unreadable.problems
        if bad.problems:
            raise Problems(self.shown, bad.problems[:MAX_PROBLEMS])
        bad.check_share(self._num_good)
        if num_sessions == 0:
            place = f"{rows.word} {max(1, number)}"
            text = f"{place}: the trace is empty. It needs at least one request."
            raise Problems(self.shown, [text])

    def _is_good(self, session: Session, place: str) -> bool:
        """Whether a session can be used, as far as its answers say; none after a problem can."""
        self._num_good += len(session.turns)
        for turn in session.turns:
            if turn.request.num_output_tokens == 0:
                if self._options.strict:
                    text = f"request {turn.request.request_id}: an answer of 0 tokens. "
                    self._bad.problems.append(f"{place}: {text}Remove it, or leave out strict.")
                self._notices.add(
                    "answers of 0 tokens taken as 1, the least the engine makes", place
                )
        return not self._bad.problems
