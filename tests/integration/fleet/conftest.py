"""One real local fleet for all tests of this folder, with two models of two replicas."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from tests.integration.fleet.local_fleet import LocalFleet, fleet_home
from tests.integration.fleet.onnx_files import write_linear, write_noop, write_recipe


@dataclass(frozen=True)
class Served:
    """A fleet that is up, and the files of its models.

    Attributes:
        linear: the file that model `linear` was made from; 2 replicas.
        noop: that of `noop`; 1 replica.
    """

    fleet: LocalFleet
    linear: Path
    noop: Path


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The fleet, with both models ready."""
    folder = tmp_path_factory.mktemp("models")
    with fleet_home() as fleet:
        linear, noop = write_linear(folder / "linear.onnx"), write_noop(folder / "noop.onnx")
        fleet.add("linear", linear, write_recipe(folder / "linear.yaml", 2))
        fleet.add("noop", noop, write_recipe(folder / "noop.yaml", 1, tokens=300))
        fleet.up()
        fleet.wait_ready("linear", 2)
        fleet.wait_ready("noop", 1)
        yield Served(fleet, linear, noop)


@pytest.fixture
def fleet(served: Served) -> LocalFleet:
    """The fleet that is up."""
    return served.fleet


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[triton.InferenceServerClient]:
    """An unmodified Triton client of the gateway."""
    with triton.InferenceServerClient(fleet.address) as client:
        yield client
