"""Lets foreign engines run in a throw-away process first, once for each device and engine."""

import logging
from pathlib import Path

from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.recipe import InputRecipe
from services.engines.base import LoadSpec
from services.engines.caches.passed_checks import PassedChecks
from services.replica.engine.check_child import check_in_child, check_limit_s

logger = logging.getLogger(__name__)


class EngineChecker:
    """Checks engines before this process loads them.

    A check costs seconds, and a replica that was killed should be back soon: what passed on
    this very device, with these very libraries and bytes, is remembered in a folder, and so is
    what was proven there.
    """

    def __init__(self, folder: Path) -> None:
        """Marks of passed checks are kept in `folder`."""
        self._passed = PassedChecks(folder)

    def check(self, spec: LoadSpec, inputs: dict[str, InputRecipe], proof_s: float = 0.0) -> None:
        """Return when the engine may be loaded here.

        Args:
            spec: what is loaded.
            inputs: how its inputs are drawn.
            proof_s: seconds of its proof, which bound those of the check; 0 where they are unknown.

        Raises:
            EngineError: it failed, or ended its process; with the last lines that it wrote.
            CheckUnfinishedError: the process did not end in time, or was ended.
        """
        if not needs_check(spec):
            return
        what = (spec.manifest, spec.device, spec.num_threads)
        if not self._passed.has(*what):
            with self._passed.turn():
                # Another replica may have had it checked meanwhile.
                if not self._passed.has(*what):
                    check_in_child(spec, inputs, check_limit_s(proof_s))
                    self._passed.add(*what)
                    return
        logger.info(
            "engine already passed the child-process check on this host: %s", spec.directory.name
        )


def needs_check(spec: LoadSpec) -> bool:
    """Whether loading this engine may end or poison the process.

    ONNX Runtime and OpenVINO read the portable master on a CPU and generate code for the
    very machine they run on: there are no foreign machine code and no device memory, which
    are what the check is for, so its process start (a second or two) is not spent.
    """
    is_cpu = spec.device.parsed_generation.platform is Platform.CPU
    reads_master = spec.manifest.key.kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
    return not (is_cpu and reads_master)
