"""What the pages of this repository promise: links lead somewhere, commands are real."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.contracts.model.batching import MAX_QUEUE
from services.contracts.model.recipe import Recipe
from services.gateway.settings import GatewaySettings
from tests.reference.commands import all_commands
from tests.reference.pages import reference_pages
from tests.unit.docs.markdown import ROOT, anchors, blocks, links, pages, prose


def _known_names() -> set[str]:
    """Settings, metrics, alerts and errors."""
    text = "".join(reference_pages().values())
    prefixes = ("SMELT_", "SMELT_GATEWAY_", "SMELT_CONTROLLER_", "SMELT_REPLICA_")
    fleet = re.findall(r"`(FLEET_\w+)`", text)
    return {*re.findall(r"`(\w+)`", text), *(p + name for p in prefixes for name in fleet)}


PAGES = pages()
DOCS = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
WRITTEN = [
    ROOT / "README.md",
    *(page for page in DOCS if not page.is_relative_to(ROOT / "docs" / "reference")),
]
COMMANDS = all_commands()
RESULTS = ROOT / "tests" / "benchmarks" / "results"
NAMED = re.compile(
    r"\b(?:SMELT_[A-Z0-9_]+|(?<=ray_)smelt_\w+|(?<![./-])smelt_[a-z]\w+|Smelt[A-Z]\w+)"
)
KNOWN = _known_names()
# What has the text of `up`, `models add`, `models list`, `status`, `why` and `infer`.
PRINTING = [
    *(f"services/cli/demo/{name}.py" for name in ("words", "demo", "traffic")),
    *(f"services/cli/fleet/{name}.py" for name in ("up", "status", "gateway_workers")),
    *(f"services/cli/models/{name}.py" for name in ("add", "listing", "version_states")),
    "services/cli/why/why.py",
    *(f"services/cli/requests/{name}.py" for name in ("infer", "needed_inputs")),
    *(f"services/controller/explain/{name}.py" for name in ("why_cases", "why_document")),
    *(f"services/controller/explain/{name}.py" for name in ("proof_words",)),
    *(f"services/controller/explain/{name}.py" for name in ("build_queue", "running_builds")),
    "services/contracts/selection/fallback_verdict.py",
    "services/contracts/selection/joint_run.py",
    "services/contracts/selection/selection.py",
    "services/contracts/selection/speed_gate.py",
    "services/controller/events/fallback_words.py",
    "compiler_worker/master/dimensions/named_dim.py",
    "compiler_worker/measures/accuracy_words.py",
    "compiler_worker/model_checks/accepted_blindness.py",
    "compiler_worker/references/reference.py",
]
# Metaphors, where a term exists.
UNPLAIN = re.compile(r"\b(?:told|hears?|nobody|whoever|by itself|gives? back|lives in)\b", re.I)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no {path}"
        if anchor:
            assert anchor in anchors(target), f"{link}: it has {sorted(anchors(target))}"


def test_what_is_looked_for_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n[x `y`](z.md#a) ![p](q.svg)\n```\n# no\n[n](o)\n```\n## A b, c\n")
    assert links(page) == ["z.md#a", "q.svg"]
    assert anchors(page) == {"a-b-c", "a-b-c-1"}
    assert [block.text for block in blocks(page)] == ["# no\n[n](o)\n"]


def test_the_readme_is_a_page() -> None:
    assert (ROOT / "README.md").stat().st_size <= 10 * 1024


def test_the_readme_explains_the_terms_that_its_commands_print() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* ", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    printed = "\n".join(text for file in PRINTING for text in _printed(ROOT / file))
    used = [term for term in terms if re.search(rf"\b{term}s?\b", printed)]
    assert {"fallback", "eager", "engine", "proof", "kind", "witness", "bucket"} <= set(used)
    explained = re.findall(r"\*\*(\w+)\*\*", prose(ROOT / "README.md"))
    assert [term for term in used if term not in explained] == []


def _printed(file: Path) -> Iterator[str]:
    """Sentences of a module, and the columns of its tables."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if isinstance(node, ast.Tuple):
            yield from (str(each.value) for each in node.elts if isinstance(each, ast.Constant))
        # Keys of documents have no spaces.
        elif isinstance(node, ast.Constant) and node not in docstrings and " " in str(node.value):
            yield str(node.value)


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = ROOT / "docs" / "README.md"
    listed = {(contents.parent / link.partition("#")[0]).resolve() for link in links(contents)}
    packages = sorted((ROOT / "services").glob("*/README.md"))
    assert [name_of(page) for page in DOCS + packages if page not in {*listed, contents}] == []


def test_every_result_is_in_the_table_of_results() -> None:
    page = ROOT / "docs" / "results.md"
    linked = {(page.parent / link).resolve() for link in links(page)}
    assert [name_of(file) for file in RESULTS.rglob("*.md") if file not in linked] == []


def test_the_page_of_tritons_clients_has_our_bounds_and_perf_analyzers_options() -> None:
    page = (ROOT / "docs" / "how-to/clients/use-triton-clients.md").read_text()
    bounds = (f"{MAX_QUEUE:,}", f"{GatewaySettings().max_in_flight:,}")
    assert [word for word in (*bounds, "--shape", "--input-data") if word not in page] == []


def test_a_typical_change_touches_six_files_of_code_at_most() -> None:
    page = ROOT / "docs" / "explanation" / "what-a-change-touches.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    files = [set(re.findall(r"\(([^()]+\.(?:py|proto))\)", row)) for row in rows]
    assert 5 <= max(map(len, files)) <= 6


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_words_are_plain(page: Path) -> None:
    assert UNPLAIN.findall(prose(page)) == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_command_and_its_options_exist(page: Path) -> None:
    for line in _smelt_lines(page):
        words = [word for word in shlex.split(line, comments=True)[1:] if word not in "[]"]
        command = COMMANDS.get(" ".join(words[:2])) or COMMANDS.get(words[0])
        assert command, f"{line}: there is no such command"
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word for word in words if word.startswith("--")}
        assert options <= known, f"{line}: it has {sorted(known)}"


def _smelt_lines(page: Path) -> list[str]:
    """Every `smelt ...` of its blocks and of its code in lines, up to what a shell ends it at."""
    text = "\n".join(block.text for block in blocks(page) if block.words.split()[:1] != ["python"])
    typed = re.findall(r"^(?:\$ |.*&& )?(?:\w+=\S+ )*(?:\S*/)?(smelt [a-z].*)$", text, re.MULTILINE)
    inline = re.findall(r"`(smelt [a-z][^`]*)`", page.read_text())
    # A pipe, a comment behind two spaces, and what a table or a sentence abbreviates.
    ends = re.compile(r" *(?:\||;|>|&&| {2}#|\.\.\.).*")
    return [ends.sub("", line.replace("[", "").replace("]", "")) for line in typed + inline]


@pytest.mark.parametrize("page", [p for p in PAGES if RESULTS not in p.parents], ids=name_of)
def test_every_setting_metric_and_alert_exists(page: Path) -> None:
    named = set(NAMED.findall(page.read_text()))
    # A prefix stands for all that begin so; what replicas record is exported as ray_<name>.
    known = {name for name in named if any(k.startswith(name) for k in KNOWN)}
    known |= {name for name in named if name.removesuffix("_bucket") in KNOWN}
    assert sorted(named - known) == []


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_python_and_recipes_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.words == "python":
            ast.parse(block.text)
        if block.words == "yaml" and block.text.startswith("# recipe.yaml"):
            Recipe.from_yaml(block.text)
