"""Classifiers whose file gives maps of class to probability."""

from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from tests.conformance.trees import classifier
from tests.unit.services.cli.models.adding import AddOptions, add

WORDS = (
    "maps: the table of probabilities [batch, 3] in place of ZipMap's maps; its columns are the "
    "classes 10, 20, 30"
)


def test_what_was_taken_is_said_and_the_classes_are_the_labels(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    path = tmp_path / "trees.onnx"
    onnx.save(classifier(has_maps=True), path)
    done = CliRunner().invoke(app, ["models", "add", "trees", str(path)], catch_exceptions=False)
    assert WORDS in " ".join((done.stdout + done.stderr).split())
    version = registry.model_version("trees")
    assert version.recipe.labels == ("10", "20", "30")
    assert version.recipe.label_scores is LabelScores.NONE
    assert version.master.outputs[1].shape == ("batch", 3)


def test_labels_of_a_recipe_come_before_them(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "trees.onnx"
    onnx.save(classifier(has_maps=True), path)
    own = Recipe(labels=("a", "b", "c"))
    found = add(registry, str(path), AddOptions(recipe=own)).recipe
    assert (found.labels, found.label_scores) == (own.labels, LabelScores.NONE)
