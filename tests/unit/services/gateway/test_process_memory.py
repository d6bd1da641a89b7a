"""What a process may take: the least of what the host and its container have."""

from pathlib import Path

import pytest

from services.gateway.process_memory import default_upload_bytes, usable_memory_bytes


@pytest.mark.parametrize(
    ("said", "expected"), [("4096", 4096), ("max", None), ("9" * 19, None), (None, None)]
)
def test_a_containers_limit_counts_where_there_is_one(
    tmp_path: Path, said: str | None, expected: int | None
) -> None:
    path = tmp_path / "memory.max"
    if said is not None:
        path.write_text(said)
    found = usable_memory_bytes([path, tmp_path / "none"])
    assert found == (expected or usable_memory_bytes([]))
    assert found >= 4096


def test_workers_share_what_one_would_take() -> None:
    assert default_upload_bytes(4) == default_upload_bytes() // 4
