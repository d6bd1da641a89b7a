"""Signals as something to wait for."""

import os
import signal
import threading

import pytest

from services.cli.why.stop_signals import stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_and_is_remembered(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as is_stopped:
        assert not is_stopped(0)
        sender = threading.Timer(0.05, os.kill, (os.getpid(), number))
        sender.start()
        assert is_stopped(60)
        sender.join()
        assert is_stopped(0)
    assert signal.getsignal(number) is before


def test_without_a_signal_the_wait_ends_by_itself() -> None:
    with stop_signals() as is_stopped:
        assert not is_stopped(0.01)
