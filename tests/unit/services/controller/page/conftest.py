"""A page over a fleet that serves one model."""

from collections.abc import Iterator

import pytest

from tests.unit.services.controller.page.page_host import PageHost, page_host, served_model


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageHost]:
    """Of all tests of a file: to stop a server takes half a second."""
    with page_host(tmp_path_factory.mktemp("page")) as made:
        made.do(lambda: made.state.set_model(served_model()))
        yield made
