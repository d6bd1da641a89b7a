"""The library that makes quantised graphs, as builders and build keys must know it."""

from services.contracts.hardware.kinds import Precision
from services.engines.device.toolchain import distribution_version

_LIBRARY = "nncf"


def quantiser_reason(precision: Precision) -> str:
    """Why this machine cannot make a graph of that precision, or ""."""
    if not precision.is_calibrated or distribution_version(_LIBRARY):
        return ""
    return f"the Python package {_LIBRARY} is not installed, which calibrates {precision}"


def quantiser_options(precision: Precision) -> dict[str, str]:
    """For the build key: another version of the library may choose other scales.

    It is no part of the toolchain, because who runs the engine does not need it.
    """
    version = f"{_LIBRARY} {distribution_version(_LIBRARY)}"
    return {"quantiser": version} if precision.is_calibrated else {}
