"""A PyTorch factory in the user's folder becomes a model, as the documentation shows it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from .local_fleet import SMELT, WAIT_S

pytestmark = pytest.mark.usefixtures("forked_children")

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/models/add-a-model.md"


def test_the_factory_of_the_page_is_found_in_the_folder_of_the_user(tmp_path: Path) -> None:
    found = re.search(r"```python\n(# towers\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    (tmp_path / "towers.py").write_text(found[1])
    done = subprocess.run(
        [SMELT, "models", "add", "tower", "towers:factory", "--json"],
        cwd=tmp_path,
        env=dict(os.environ) | {"SMELT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["name"], json.loads(done.stdout)["version"]) == ("tower", 1)
