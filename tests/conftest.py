"""What holds for every test: the marker of its folder, and no clock in property tests."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from services.engines.caches.compile_cache import keep_headers_in_cache
from services.engines.caches.unfinished import remove_unfinished

TESTS = Path(__file__).parent

# Read when gRPC is imported. Ray forks to start its processes; gRPC's handlers of forks may end
# such a child before it becomes its program, while other tests' threads are inside gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Each test has a cache folder of its own; what torch compiles is shared, or each would begin anew.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(TESTS.parent / ".cache" / "inductor"))

# Proofs of real builds would each compile a fallback, and tiny models may well be slower than it:
# what is tested there is another thing. The tests of the gate switch it on, as those of joint runs.
os.environ.setdefault("SMELT_BENCHMARK_FALLBACK", "0")
os.environ.setdefault("SMELT_BENCHMARK_TOGETHER", "0")

# A process for each model that is added takes a second; its tests switch it on.
os.environ.setdefault("SMELT_CHECK_TIME_LIMIT_S", "0")

# It takes seconds to import torch for it: the tests of the fallback's verdict switch it on.
os.environ.setdefault("SMELT_VERDICT_TIME_LIMIT_S", "0")

# A deadline would be an assertion about time, and a stored example would depend on the machine.
settings.register_profile("smelt", deadline=None, database=None, derandomize=True)
settings.load_profile("smelt")


# What an interrupted run left half compiled there would fail this one.
remove_unfinished(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))


@pytest.fixture(autouse=True)
def own_headers_of_torch() -> None:
    """Where a test had torch compile into a folder of its own, torch remembers headers there."""
    if "torch._inductor.codecache" in sys.modules:
        keep_headers_in_cache()


@pytest.fixture(autouse=True)
def own_log_handlers() -> Iterator[None]:
    """A command that a test runs in this process sends logs to a stream that ends with the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)
    root.setLevel(level)


# Folders whose tests share what is dear to start, and so run in one process.
TOGETHER = ("tests/conformance/", "tests/integration/fleet/", "tests/integration/master/")


# A loop has a TLS of its own.
EACH_LOOP = "integration/gateway/tls"


class Groups(LoadScopeScheduling):
    """Gives the tests of a file, or of a folder that is named above, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if path.startswith(folder)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Whatever --dist says: xdist's own groups are lost in the node ids of pytest 9.2."""
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the name of the top folder it lies in.

    Gateways and replicas run on uvloop: asyncio's own loop is slow, but where each loop has an
    implementation of its own of what is tested.
    """
    for item in items:
        path = item.path.relative_to(TESTS)
        if len(path.parts) > 1:
            item.add_marker(path.parts[0])
        parameters = getattr(getattr(item, "callspec", None), "id", "").split("-")
        if "asyncio" in parameters and not path.is_relative_to(EACH_LOOP):
            item.add_marker("slow")
