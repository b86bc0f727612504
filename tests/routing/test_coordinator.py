"""When counts are published: cases by hand; recordings hold the rest."""

from __future__ import annotations

import pytest

from kvsim.routing.coordinator import Coordinator


def test_the_first_report_after_a_quiet_time_goes_out_at_once() -> None:
    coordinator = Coordinator(2, lockstep=False)
    assert coordinator.due_s == 5.0
    coordinator.report(1, (1, 0, 0.0), 0.4)
    assert coordinator.due_s == 0.4
    assert coordinator.publish(0.4).counts == ((0, 0, 0.0), (1, 0, 0.0))
    coordinator.report(1, (0, 1, 0.1), 0.41)
    assert coordinator.due_s == pytest.approx(0.5)
    coordinator.publish(0.5)
    assert coordinator.due_s == pytest.approx(5.5)


def test_in_lockstep_it_waits_for_the_others_of_the_step() -> None:
    coordinator = Coordinator(2, lockstep=True)
    coordinator.report(0, (1, 0, 0.0), 0.4, wave=0, step=1)
    assert coordinator.due_s == pytest.approx(0.45)
    coordinator.report(1, (1, 0, 0.0), 0.43, wave=0, step=1)
    assert coordinator.due_s == pytest.approx(0.48)  # put off


def test_in_lockstep_counts_of_the_step_before_are_published_and_then_the_others() -> None:
    coordinator = Coordinator(2, lockstep=True)
    coordinator.report(0, (1, 0, 0.0), 0.01, wave=0, step=1)
    coordinator.report(0, (0, 1, 0.2), 0.02, wave=0, step=2)
    assert coordinator.due_s == pytest.approx(0.1)  # frozen ones need not settle
    assert coordinator.publish(0.1).counts == ((1, 0, 0.0), (0, 0, 0.0))
    assert coordinator.due_s == pytest.approx(0.2)
    assert coordinator.publish(0.2).counts == ((0, 1, 0.2), (0, 0, 0.0))
    assert coordinator.due_s == pytest.approx(5.2)


def test_waves_are_told_at_once_and_once() -> None:
    coordinator = Coordinator(2, lockstep=True)
    started = coordinator.start_wave(0, 0.1)
    assert started is not None
    assert (started.counts, started.wave, started.running) == (None, 0, True)
    assert coordinator.start_wave(0, 0.2) is None
    ended = coordinator.complete_wave(0, 0.3)
    assert ended is not None
    assert (ended.wave, ended.running) == (1, False)
    assert coordinator.complete_wave(0, 0.4) is None
    assert coordinator.start_wave(0, 0.5) is None  # over
    assert coordinator.start_wave(1, 0.6) is not None
