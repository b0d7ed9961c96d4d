"""Ctrl-C while records are appended."""

import signal

import pytest

from sbp_core.cli.signals import HeldInterrupts


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interrupts():
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with HeldInterrupts() as made:
            yield made
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, former)


def steps_of(interrupts, count):
    """Which of some interrupts a body that is held survives."""
    steps = []

    def body():
        with interrupts.held():
            for step in range(count):
                interrupt()
                steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        body()
    return steps


def test_an_interrupt_comes_after_what_is_held(interrupts):
    assert steps_of(interrupts, 1) == [0]
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_the_second_interrupt_is_not_held(interrupts):
    assert steps_of(interrupts, 3) == [0]


def test_an_interrupt_that_came_before_counts_as_the_first(interrupts):
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert steps_of(interrupts, 1) == []


def test_where_interrupts_are_ignored_they_stay_so():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterrupts():
            interrupt()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
