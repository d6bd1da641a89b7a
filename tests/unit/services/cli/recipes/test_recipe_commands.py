"""`smelt recipe init`, `check` and `schema`, on a real model."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.cli.recipes.recipe_file import read_recipe
from services.contracts.errors import InvalidRecipeError, InvalidRequestError, NotFoundError
from services.contracts.model.recipe import Bucket, DimRange, InputRole, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import save_master, tiny_model
from tests.faults.judged import normal, written

SPAN = DimRange(min=1, opt=2, max=4)
BUCKETS = (Bucket(dims={"batch": SPAN, "sequence": SPAN}),)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_master(tiny_model(7), tmp_path_factory.mktemp("model")))


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["recipe", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def init(model: str, folder: Path, *more: str) -> Path:
    path = folder / "recipe.yaml"
    run("init", model, "--out", str(path), *more)
    return path


def recipe_file(folder: Path, text: str) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)


def test_what_is_written_is_the_default_with_its_buckets(model: str, tmp_path: Path) -> None:
    path = init(model, tmp_path)
    recipe = read_recipe(path)
    assert set(recipe.buckets[0].dims) == {"batch", "sequence"}
    assert recipe.model_copy(update={"buckets": ()}) == Recipe()
    assert "fits" in run("check", str(path), "--model", model)


def test_comments_speak_of_the_model_and_are_a_recipe_once_they_are_uncommented(
    model: str, tmp_path: Path
) -> None:
    path = init(model, tmp_path)
    _, interface, *fields = path.read_text().split("\n\n")
    assert "#   input ids: INT64 [batch, sequence], 0 to 39 (rows of 'embedding')" in interface
    words = {_uncommented(each).partition(":")[0]: each.replace("\n# ", " ") for each in fields}
    assert "is an example, not the default" in words["accuracy"]
    assert "is an example" not in words["response_cache"] + words["kinds"]
    assert not re.search("None|True|False", path.read_text())
    whole = "".join(_uncommented(field) for field in fields)
    recipe = read_recipe(Path(recipe_file(tmp_path, whole)))
    assert recipe.model_fields_set == set(Recipe.model_fields)
    assert recipe.inputs["mask"].role is InputRole.MASK
    assert "fits" not in run("check", str(path))


def _uncommented(block: str) -> str:
    """A field without what is said of it; a comment that begins small is a field, too."""
    lines = block.splitlines()
    first = next(n for n, line in enumerate(lines) if re.match(r"(# )?[a-z_]+:", line))
    return "".join(f"{line.removeprefix('# ')}\n" for line in lines[first:])


def test_a_file_that_is_there_is_kept(model: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "kinds: [openvino]\n")
    with pytest.raises(
        InvalidRequestError,
        match="there already, and is not replaced; name another file with --out",
    ):
        run("init", model, "--out", path)
    assert Path(path).read_text() == "kinds: [openvino]\n"


def test_of_a_model_of_the_store_it_is_the_recipe_that_it_has(model: str, tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    own = Recipe(buckets=BUCKETS, num_replicas=3)
    version = add_model(registry, "tiny", model, AddOptions(recipe=own), Steps(is_quiet=True))
    path = init("tiny", tmp_path, "--store", str(tmp_path / "store"))
    assert read_recipe(path) == version.recipe
    assert f"smelt models add tiny {model} --recipe" in path.read_text()
    with pytest.raises(NotFoundError, match="other"):
        run("check", str(path), "--model", "other", "--store", str(tmp_path / "store"))


def test_sizes_beyond_those_by_default_fit_a_model_that_fails_at_small_ones(
    tmp_path: Path,
) -> None:
    graph = "g (float[n, 1, t] x) => (float[n, 1, u] y) { y = Conv (x, w) }"
    source, store = str(written(tmp_path, graph, w=normal(1, 1, 40))), str(tmp_path / "store")
    registry = Registry(open_store(store), tmp_path / "cache")
    version = add_model(registry, "wide", source, AddOptions(), Steps(is_quiet=True))
    assert version.recipe.buckets[0].dims["t"] == DimRange(min=40, opt=64, max=128)
    text = "buckets: [{dims: {n: {min: 1, opt: 4, max: 8}, t: {min: 40, opt: 64, max: 512}}}]\n"
    path = recipe_file(tmp_path, text)
    assert "fits" in run("check", path, "--model", "wide", "--store", store)
    assert "fits" in run("check", path, "--model", source)
    add_model(
        registry, "wide", source, AddOptions(recipe=read_recipe(Path(path))), Steps(is_quiet=True)
    )


def test_every_fault_has_its_line_and_the_nearest_word(tmp_path: Path) -> None:
    path = recipe_file(
        tmp_path,
        "num_replica: 2\nkinds:\n- tensorrt\n- openvin\nranking:\n  top_k: 3\n"
        "inputs: {ids: {hi: 2}}\ntasks:\n- metric: iou\n  output: boxes\n  min_io: 1\n",
    )
    with pytest.raises(InvalidRecipeError) as refused:
        run("check", path)
    faults = str(refused.value).splitlines()
    wanted = (
        "1: num_replica: no such key, did you mean 'num_replicas'?",
        "4: kinds.1: got 'openvin': ",
        "5: ranking.output: got nothing",
        "7: inputs.ids.hi: no such key",
        "11: tasks.0.iou.min_io: no such key, did you mean 'min_iou'?; expected format,",
    )
    assert len(faults) == len(wanted)
    for fault, begins in zip(faults, wanted, strict=True):
        assert fault.startswith(f"{path}:{begins}")
    assert "did you mean 'openvino'?" in faults[1]


def test_what_is_no_yaml_has_its_place_and_the_fix_in_our_words(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "kinds: [openvino\nnum_replicas: 2\n")
    with pytest.raises(InvalidRecipeError) as refused:
        run("check", path)
    assert str(refused.value) == (
        f"{path}:2: column 13: found 'num_replicas: 2', wanted ',' or ']': close the list "
        "that begins on line 1 with ]"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("inputs:\n  mask: {role: mask}\n  idz: {}\n", "3: inputs: 'idz' .*did you mean 'ids'"),
        (
            "batching:\n  max_waste: 0.1\n  batch_dim: batc\n",
            "3: batching.batch_dim: 'batc' is no dynamic dimension .*did you mean 'batch'",
        ),
        (
            "\nbuckets: [{dims: {batch: {min: 1, opt: 2, max: 4}}}]\n",
            "2: bucket batch4: no range for 'sequence'; expected a range for each of batch, seq",
        ),
        ("outputs:\n  pooled:\n    accept_blind: {int8: [2 off]}\n", "3: outputs.pooled.accept"),
        ("precisions: [int8]\ncalibration: {path: none.npz}\n", "2: calibration.path"),
    ],
)
def test_what_does_not_fit_the_model_has_its_line(
    model: str, tmp_path: Path, text: str, fault: str
) -> None:
    path = recipe_file(tmp_path, text)
    run("check", path)
    with pytest.raises(InvalidRecipeError, match=f"^{path}:{fault}"):
        run("check", path, "--model", model)


def test_models_add_says_the_same_of_a_wrong_file(model: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "precisions: [fp32]\nkinds: [openvin]\n")
    words = ["models", "add", "tiny", model, "--store", str(tmp_path / "store"), "--recipe", path]
    with pytest.raises(InvalidRecipeError, match=rf"{path}:2: kinds\.0: .*'openvino'\?"):
        CliRunner().invoke(app, words, catch_exceptions=False)


WRONG_DIM = """buckets:
- dims:
    batch: {min: 1, opt: 4, max: 8}
    sequenc: {min: 1, opt: 4, max: 8}
"""
WRONG_ROWS = "batching:\n  batch_dim: sequenc\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [(WRONG_DIM, "4: bucket batch8-sequenc8"), (WRONG_ROWS, "2: batching.batch_dim")],
)
def test_a_wrong_dimension_has_its_line_before_the_model_is_opened(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str
) -> None:
    path = recipe_file(tmp_path, text)
    add = ["models", "add", "tiny", model, "--store", str(tmp_path / "store"), "--recipe", path]
    monkeypatch.setattr("compiler_worker.master.stored.input_values", None)
    wanted = (
        f"^{path}:{place}: 'sequenc' is no dynamic dimension of the model, did you mean 'sequence'"
    )
    for words in (add, ["recipe", "check", path, "--model", model]):
        with pytest.raises(InvalidRecipeError, match=wanted):
            CliRunner().invoke(app, words, catch_exceptions=False)


def test_what_models_add_refuses_of_names_has_its_line(model: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "precisions: [fp32]\ninputs:\n  idz: {high: 9}\n")
    words = ["models", "add", "tiny", model, "--store", str(tmp_path / "store"), "--recipe", path]
    with pytest.raises(InvalidRecipeError, match=f"^{path}:3: inputs: 'idz'"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_the_schema_is_that_of_the_reference(model: str, tmp_path: Path) -> None:
    printed = run("schema")
    reference = Path(__file__).parents[5] / "docs" / "reference" / "recipe.schema.json"
    assert printed == reference.read_text()
    assert json.loads(run("schema", "--json")) == json.loads(printed)
    recipe = read_recipe(init(model, tmp_path)).model_dump(mode="json")
    jsonschema.Draft202012Validator(json.loads(printed)).validate(recipe)
