"""What a change reaches: through imports, processes, file names and the folders of tests."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.changed import ROOT, changed_files, reached

TEST = "tests/integration/test_a.py"
PYPROJECT = '[project]\nscripts = {smelt = "services.cli.main:main"}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in which one test imports nothing of it."""
    write(tmp_path, {"pyproject.toml": PYPROJECT, "tests/unit/test_other.py": "import json\n"})
    return tmp_path


def write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    "importing",
    [
        "import services.engines.pool",
        "from services.engines import pool",
        "from services.engines.pool import Pool",
        "def later():\n    from services.engines.pool import Pool",
        "if TYPE_CHECKING:\n    import services.engines.pool as pool",
    ],
)
def test_a_chain_of_imports_is_told_from_the_change_to_the_test(root: Path, importing: str) -> None:
    engines = {"services/engines/pool.py": "", "services/engines/__init__.py": ""}
    write(root, {**engines, "services/replica.py": importing, TEST: "import services.replica\n"})
    for changed in engines:
        assert reached(root, [changed]) == {TEST: [changed, "services/replica.py", TEST]}


@pytest.mark.parametrize("importing", ["from . import pool", "from ..engines.pool import Pool"])
def test_a_relative_import_is_one(root: Path, importing: str) -> None:
    sources = {"services/engines/pool.py": "", "services/engines/base.py": importing}
    write(root, {**sources, TEST: "from services.engines.base import Engine\n"})
    assert reached(root, ["services/engines/pool.py"])[TEST][1] == "services/engines/base.py"


def test_the_shortest_chain_is_told(root: Path) -> None:
    sources = {"services/far.py": "import services.near", "services/near.py": ""}
    write(root, {**sources, TEST: "import services.far\nimport services.near\n"})
    assert reached(root, sources) == {TEST: ["services/far.py", TEST]}
    assert reached(root, ["services/near.py"]) == {TEST: ["services/near.py", TEST]}


def test_a_test_uses_the_conftests_of_its_folder_and_of_those_above(root: Path) -> None:
    near, above, beside = (
        f"tests/{folder}conftest.py" for folder in ("integration/", "", "integration/beside/")
    )
    write(root, {near: "import services.near\n", above: "", beside: "", TEST: ""})
    write(root, {"services/near.py": ""})
    assert reached(root, ["services/near.py"]) == {TEST: ["services/near.py", near, TEST]}
    assert set(reached(root, [above])) == {TEST, "tests/unit/test_other.py"}
    assert not reached(root, [beside])


@pytest.mark.parametrize(
    "starting",
    [
        'run(sys.executable, "-m", "services.gateway")',
        'run("from services.gateway.__main__ import main; main()")',
        'run(ROOT / "services/gateway/__main__.py")',
        'import_module(f"services.{name}.{part}")',
    ],
)
def test_a_process_started_by_its_modules_name_is_used(root: Path, starting: str) -> None:
    started = {"services/gateway/__main__.py": "import services.routing", "services/routing.py": ""}
    write(root, {**started, "services/fleet.py": starting, TEST: "import services.fleet\n"})
    assert reached(root, ["services/routing.py"]) == {
        TEST: ["services/routing.py", "services/gateway/__main__.py", "services/fleet.py", TEST]
    }


@pytest.mark.parametrize(
    ("saying", "changed"),
    [
        ('SMELT = Path(sys.executable).with_name("smelt")', "services/cli/main.py"),
        ('SMELT = ".venv/bin/smelt"', "services/cli/main.py"),
        ('APPLICATION = "services.replica.app:application"', "services/replica/app.py"),
        ('patch("services.replica.app.LIMIT", 3)', "services/replica/app.py"),
        ('DRIVER = Path(__file__).with_name("driver.py")', "tests/integration/driver.py"),
        ('import_module(f"{__name__}.{kind}")', "tests/integration/test_a/family.py"),
    ],
)
def test_a_string_may_name_a_module(root: Path, saying: str, changed: str) -> None:
    write(root, {changed: "", TEST: saying})
    assert reached(root, [changed]) == {TEST: [changed, TEST]}


@pytest.mark.parametrize(
    "saying",
    ['"""As services.gateway.server does."""', 'AUDIENCE = "smelt"', 'HINT = "python -m services"'],
)
def test_what_is_only_talked_about_is_not_used(root: Path, saying: str) -> None:
    sources = {f"services/{name}.py": "" for name in ("cli/main", "gateway/server", "__main__")}
    write(root, {**sources, TEST: saying})
    assert not reached(root, sources)


@pytest.mark.parametrize(
    "saying",
    [
        'FLEET = BASE / "fleet.yaml"',
        'COMMAND = "kubectl apply -f k8s/base/fleet.yaml"',
        'K8S = ROOT / "k8s"',
        'BASE = Path("k8s/base/")',
    ],
)
def test_another_file_reaches_what_names_it_or_a_folder_of_it(root: Path, saying: str) -> None:
    write(root, {"services/sources.py": saying, TEST: "import services.sources\n"})
    changed = "k8s/base/fleet.yaml"
    assert reached(root, [changed]) == {TEST: [changed, "services/sources.py", TEST]}
    assert not reached(root, ["deploy/other.yaml"])


def test_another_file_under_tests_reaches_those_beside_above_and_below(root: Path) -> None:
    below = "tests/integration/rules/deep/test_b.py"
    write(root, {TEST: "", below: ""})
    assert set(reached(root, ["tests/integration/rules/fleet.yml"])) == {TEST, below}


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements.lock", "Makefile"])
def test_what_every_test_runs_with_reaches_every_test(root: Path, changed: str) -> None:
    assert set(reached(root, [changed])) == {"tests/unit/test_other.py"}


def test_a_module_that_is_gone_reaches_those_that_still_use_it(root: Path) -> None:
    write(root, {"services/user.py": "import services.gone\n", TEST: "import services.user\n"})
    gone = "services/gone.py"
    assert reached(root, [gone]) == {TEST: [gone, "services/user.py", TEST]}
    assert not reached(root, ["tests/unit/test_gone.py"])


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_changed_is_what_was_committed_staged_edited_renamed_or_not_yet_added(root: Path) -> None:
    def git(*arguments: str) -> None:
        settings = ("user.name=Smelt", "user.email=smelt@localhost", "commit.gpgsign=false")
        options = [word for setting in settings for word in ("-c", setting)]
        subprocess.run(["git", *options, *arguments], cwd=root, check=True, capture_output=True)

    def commit(**texts: str) -> None:
        write(root, {f"{name}.py": text for name, text in texts.items()})
        git("add", "--all")
        git("commit", "--message", "more")

    git("init", "--initial-branch", "work")
    commit(edited="1", staged="1", deleted="1", renamed="1", same="1")
    git("branch", "upstream")
    commit(committed="1")
    git("mv", "renamed.py", "new name.py")
    (root / "deleted.py").unlink()
    write(root, {"edited.py": "2", "staged.py": "2", "untracked.py": "1"})
    git("add", "staged.py")
    uncommitted = {"edited", "staged", "deleted", "renamed", "new name", "untracked"}
    in_all = {f"{name}.py" for name in (*uncommitted, "committed")}
    assert changed_files(root, "upstream") == changed_files(root, "") == in_all
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed_files(root, "") == in_all - {"committed.py"}


def test_a_change_of_the_compiler_does_not_reach_tests_that_have_nothing_of_it() -> None:
    """Not through the conftest.py of all tests, or everything would run whatever has changed."""
    found = reached(ROOT, ["compiler_worker/fx_rewrites/norms.py"])
    assert "tests/conformance/test_engines.py" in found
    # A bench draws its requests as proofs draw inputs.
    bench = ["tests/integration/gateway/test_bench.py"]
    assert [path for path in found if path.startswith("tests/integration/gateway/")] == bench
