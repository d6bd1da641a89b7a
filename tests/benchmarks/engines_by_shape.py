"""What a replica would gain if it held an engine for each shape: by the joint runs of stores.

    python -m tests.benchmarks.engines_by_shape STORE...

For each run the engine that serves (fastest over all shapes) stands beside the fastest at each
shape, by calls in turns in one process. Prints a table; builds nothing.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_run import JointRun
from services.contracts.store.object_store import open_store

_WORTH = 1.1


class _Gain(NamedTuple):
    """Of one run: the serving engine's time by that of the fastest at each shape."""

    model: str
    master: str
    by_shape: dict[str, float]

    @property
    def mean(self) -> float:
        return geometric_mean(self.by_shape.values())


def gain_of(model: str, run: JointRun) -> _Gain:
    """Of a run with more than one engine."""
    serving = min(run.digests, key=run.mean_s)
    by_shape = {
        shape.timing(serving).shape: shape.paired_s(serving)
        / min(map(shape.paired_s, shape.engines))
        for shape in run.shapes
    }
    return _Gain(model, run.master_digest, by_shape)


def _gains(url: str) -> Iterator[_Gain]:
    registry = Registry(open_store(url), Path(tempfile.mkdtemp()))
    for name in registry.model_names():
        for run in registry.joint_runs(registry.model_version(name).master.digest):
            if len(run.digests) > 1 and len(run.shapes) > 1:
                yield gain_of(name, run)


def main(urls: list[str]) -> int:
    """Print all runs that would gain, and a line of all."""
    gains = [gain for url in urls for gain in _gains(url)]
    print("| model | shapes | mean | most, at |\n|---|---|---|---|")
    for gain in gains:
        shape = max(gain.by_shape, key=gain.by_shape.__getitem__)
        most = gain.by_shape[shape]
        if most > 1:
            print(f"| {gain.model} | {len(gain.by_shape)} | {gain.mean:.3f} | {most:.2f} {shape} |")
    models = {gain.master for gain in gains}
    worth = {gain.master for gain in gains if gain.mean >= _WORTH}
    print(f"{len(gains)} runs of {len(models)} models; mean gain {_WORTH} or more: {len(worth)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
