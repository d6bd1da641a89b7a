"""Lets foreign engines run in a throw-away process first, once for each device and engine."""

import hashlib
import logging
from pathlib import Path

from services.contracts.hardware.facts import DeviceFacts, Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import EngineManifest
from services.contracts.model.recipe import InputRecipe
from services.engines.base import LoadSpec
from services.replica.engine.check_child import check_in_child

logger = logging.getLogger(__name__)


class EngineChecker:
    """Checks engines before this process loads them.

    A check costs seconds, and a replica that was killed should be back soon: what passed on
    this very device, with these very libraries and bytes, is remembered in a folder.
    """

    def __init__(self, folder: Path) -> None:
        """Marks of passed checks are kept in `folder`."""
        self._folder = folder

    def check(self, spec: LoadSpec, inputs: dict[str, InputRecipe]) -> None:
        """Return when the engine may be loaded here.

        Raises:
            EngineError: it failed, or ended its process; with the last words.
        """
        if not needs_check(spec):
            return
        mark = self._folder / name_here(spec.manifest, spec.device, spec.num_threads)
        if mark.is_file():
            logger.info("engine passed its check here before: %s", mark.name)
            return
        check_in_child(spec, inputs)
        self._folder.mkdir(parents=True, exist_ok=True)
        mark.touch()


def needs_check(spec: LoadSpec) -> bool:
    """Whether loading this engine may end or poison the process.

    ONNX Runtime and OpenVINO read the portable master on a CPU and generate code for the
    very machine they run on: there are no foreign machine code and no device memory, which
    are what the check is for, so its process start (a second or two) is not spent.
    """
    is_cpu = spec.device.parsed_generation.platform is Platform.CPU
    reads_master = spec.manifest.key.kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
    return not (is_cpu and reads_master)


def name_here(manifest: EngineManifest, device: DeviceFacts, num_threads: int) -> str:
    """A digest of an engine and all that it runs on.

    Args:
        manifest: names the engine's bytes by digest.
        device: with the versions of its libraries.
        num_threads: of the engine; 0 leaves it to the library.
    """
    facts = {
        # The manifest names the engine's bytes by digest, the device its libraries.
        "manifest": manifest.model_dump(mode="json"),
        "device": device.model_dump(mode="json"),
        "num_threads": num_threads,
    }
    return hashlib.sha256(canonical_json(facts)).hexdigest()
