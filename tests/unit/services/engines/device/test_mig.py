"""Slices of a GPU are devices of their own."""

from pathlib import Path

import pytest

from tests.cuda_driver import needs_gcc, run_with_driver

_COUNTED = """
import os
from services.controller.ray_node import count_slices
print(count_slices(), os.environ.get("CUDA_VISIBLE_DEVICES"))
"""
_GIVEN = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = {given!r}
"""
_REPLICAS = """
import os
import ray
from services.controller.ray_node import RayNodeSettings, start_node

start_node(RayNodeSettings(num_cpus=1, generation_override="cuda-sm90"), lambda _: None)

@ray.remote(num_cpus=0, num_gpus=0.75)
class Replica:
    def device(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

replicas = [Replica.remote() for _ in range(3)]
print(*sorted(ray.get([each.device.remote() for each in replicas])))
"""


@needs_gcc
@pytest.mark.parametrize(
    ("is_split", "given", "words"),
    [
        # The smallest first, which is the device that the node's labels describe.
        (True, None, "3 MIG-3,MIG-1,GPU-200"),
        (False, None, "None None"),
        (True, "MIG-1", "1 MIG-1"),
        (True, "1", "None 1"),
    ],
)
def test_slices_are_counted_as_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_split: bool,
    given: str | None,
    words: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code = (_GIVEN.format(given=given) if given else "") + _COUNTED
    assert run_with_driver(tmp_path, code, is_split=is_split).strip() == words


@needs_gcc
def test_each_replica_gets_a_slice_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = run_with_driver(tmp_path, _REPLICAS, is_split=True)
    assert found.split() == ["GPU-200", "MIG-1", "MIG-3"]
