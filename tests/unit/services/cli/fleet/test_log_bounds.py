"""A fleet that serves bounds the logs of its processes."""

import signal
import threading
from pathlib import Path

import pytest

from services.cli.fleet.local_fleet import LocalFleet
from services.cli.fleet.up_options import UpOptions
from services.cli.logs.rotation import MOST_BYTES, older_part
from services.cli.settings import CliSettings


def test_large_logs_are_emptied_while_it_serves(tmp_path: Path) -> None:
    settings = CliSettings(home=tmp_path)
    logs = [settings.run_dir / "gateway.log", settings.run_dir / "observe/grafana/grafana.log"]
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            file.truncate(MOST_BYTES + 1)
    is_over = threading.Event()

    def stop_when_done() -> None:
        while any(log.stat().st_size for log in logs) and not is_over.wait(0.01):
            pass
        signal.raise_signal(signal.SIGINT)

    # A shell that starts tests in the background has SIGINT ignored, and Python keeps it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stopper = threading.Thread(target=stop_when_done)
    stopper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalFleet(settings, UpOptions()).serve_until_stopped()
    finally:
        is_over.set()
        stopper.join()
        signal.signal(signal.SIGINT, before)
    assert [older_part(log).stat().st_size for log in logs] == [MOST_BYTES + 1] * 2
