"""Labels of nodes, and of objects that Smelt makes in Kubernetes."""

from typing import Final

PREFIX: Final = "smelt.dev/"
GENERATION_LABEL: Final = f"{PREFIX}generation"
# The one seam to simulate another generation on a node: `probe_device(override=...)` gets it.
SIMULATED_LABEL: Final = f"{PREFIX}simulated-generation"
