"""The access log: what a line holds, what is left out, and what happens to a file that goes."""

import io
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from services.contracts.errors import InvalidRequestError
from services.gateway.observability import access_log
from services.gateway.observability.access_log import AccessLog, AccessRecord
from services.telemetry.catalog import ACCESS_LOG_DROPPED, GATEWAY_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from services.telemetry.recorder import NullRecorder

RECORD = AccessRecord(
    time_s=1_700_000_000.5,
    rpc="ModelInfer",
    code="OK",
    duration_s=0.00123456789,
    request_id="a\nb",
    model="möbel",
    version="3",
    bytes_in=10,
    replica_id="r1",
)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_one_object_without_what_is_empty(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"), NullRecorder())
    log.add(RECORD)
    log.close()
    assert lines_of(tmp_path / "log") == [
        {
            "time": "2023-11-14T22:13:20.500+00:00",
            "rpc": "ModelInfer",
            "code": "OK",
            "duration_s": 0.001235,
            "request_id": "a\nb",
            "model": "möbel",
            "version": "3",
            "bytes_in": 10,
            "bytes_out": 0,
            "replica_id": "r1",
        }
    ]


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"), NullRecorder())
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.add(RECORD)
    log.close()
    assert (tmp_path / "log.1").read_text() == ""
    assert len(lines_of(tmp_path / "log")) == 1


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = AccessLog("-", NullRecorder())
    log.add(RECORD)
    log.close()
    assert json.loads(capfdbinary.readouterr().out)["replica_id"] == "r1"


def test_what_does_not_fit_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, is_writing = threading.Event(), threading.Event()

    class Waiting(io.FileIO):
        def write(self, data: Any) -> int:
            is_writing.set()
            assert may_write.wait(30)
            return super().write(data)

    registry = CollectorRegistry()
    log = AccessLog(str(tmp_path / "log"), PrometheusRecorder(GATEWAY_METRICS, registry))
    monkeypatch.setattr(access_log, "MAX_PENDING", 3)
    monkeypatch.setattr(Path, "open", lambda path, mode, **_: Waiting(path, mode))
    log.add(RECORD)
    assert is_writing.wait(30)
    for _ in range(5):
        log.add(RECORD)
    may_write.set()
    log.close()
    assert registry.get_sample_value(ACCESS_LOG_DROPPED.name) == 2
    monkeypatch.undo()
    assert len(lines_of(tmp_path / "log")) == 4


def test_a_disk_that_fails_is_told_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    registry = CollectorRegistry()
    log = AccessLog(str(folder / "log"), PrometheusRecorder(GATEWAY_METRICS, registry))
    shutil.rmtree(folder)
    log.add(RECORD)
    log.close()
    assert registry.get_sample_value(ACCESS_LOG_DROPPED.name) == 1
    assert [entry.message for entry in caplog.records if "cannot be written now" in entry.message]


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"), NullRecorder())
    log.add(RECORD._replace(caller="half \ud800"))
    log.close()
    assert lines_of(tmp_path / "log")[0]["caller"] == "half \ud800"


def test_whatever_fails_ends_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(*_: object) -> None:
        raise ValueError("I/O operation on closed file")

    registry = CollectorRegistry()
    log = AccessLog(str(tmp_path / "log"), PrometheusRecorder(GATEWAY_METRICS, registry))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", closed)
        log.add(RECORD)
        log.close()
    assert registry.get_sample_value(ACCESS_LOG_DROPPED.name) == 1
    assert f"access log {tmp_path / 'log'} cannot be written now" in caplog.text


def test_a_pipe_that_nobody_reads_holds_up_no_end(caplog: pytest.LogCaptureFixture) -> None:
    read_fd, write_fd = os.pipe()
    log = AccessLog(f"/dev/fd/{write_fd}", NullRecorder(), close_timeout_s=0.1)
    log.add(RECORD._replace(caller="x" * 1_000_000))
    log.close()
    assert "blocks writes; its last lines are lost" in caplog.text
    (writer,) = (each for each in threading.enumerate() if each.name == "access log")
    os.close(read_fd)  # and the writer learns that nobody will
    writer.join(30)
    os.close(write_fd)


def test_a_disk_that_takes_a_part_is_given_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:7])

    monkeypatch.setattr(Path, "open", lambda path, mode, **_: Slow(path, mode))
    log = AccessLog(str(tmp_path / "log"), NullRecorder())
    log.add(RECORD)
    log.close()
    monkeypatch.undo()
    assert len(lines_of(tmp_path / "log")) == 1


def test_a_target_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="SMELT_GATEWAY_ACCESS_LOG"):
        AccessLog(str(tmp_path / "none" / "log"), NullRecorder())


@pytest.mark.parametrize(("share", "wanted"), [(0.0, {False}), (1.0, {True}), (0.5, {False, True})])
def test_a_share_of_what_went_well_and_all_else(
    tmp_path: Path, share: float, wanted: set[bool]
) -> None:
    log = AccessLog(str(tmp_path / "log"), NullRecorder(), share=share)
    assert {log.wants(grpc.StatusCode.OK) for _ in range(200)} == wanted
    assert all(log.wants(grpc.StatusCode.UNAVAILABLE) for _ in range(20))
    log.close()
