"""`smelt node-labels`: what this host's Ray node is to publish of its device."""

from services.cli.output.show import show
from services.contracts.hardware.node_class import NodeClass
from services.engines.device.device_probe import probe_device


def run_node_labels() -> None:
    """Print the labels as `ray start --labels` takes them, or as JSON.

    Raises:
        InvalidRequestError: the processor is too old.
    """
    labels = NodeClass.from_facts(probe_device()).labels()
    # One line and nothing else: it goes into a command.
    line = ",".join(f"{name}={value}" for name, value in labels.items())
    show(labels, [line], is_wide=True)
