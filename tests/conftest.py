"""What holds for every test: the marker of its folder, and no clock in property tests."""

from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent

# A deadline would be an assertion about time, and a stored example would depend on the machine.
settings.register_profile("smelt", deadline=None, database=None, derandomize=True)
settings.load_profile("smelt")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the name of the top folder it lies in."""
    for item in items:
        top, *below = item.path.relative_to(TESTS).parts
        if below:
            item.add_marker(top)
