"""What a RayService's text asks for: that of our own overlays, and texts that are wrong."""

from typing import Any

import pytest
import yaml

from services.controller.platform.kubernetes.serve_config import replicas_asked_for


def service(text: str | None) -> dict[str, Any]:
    """A RayService with that serveConfigV2."""
    return {"metadata": {"name": "smelt"}, "spec": {} if text is None else {"serveConfigV2": text}}


def test_the_production_overlays_text_is_added_up_over_generations(
    pytestconfig: pytest.Config,
) -> None:
    path = pytestconfig.rootpath / "k8s/overlays/production/models.yaml"
    (patch,) = (p for p in yaml.safe_load(path.read_text()) if p["path"].endswith("V2"))
    applications = yaml.safe_load(patch["value"])["applications"]
    wanted = replicas_asked_for(service(patch["value"]))
    assert len(applications) > 1
    assert sum(wanted.values()) == sum(a["deployments"][0]["num_replicas"] for a in applications)
    assert ("all-minilm-l6-v2", 1) in wanted


@pytest.mark.parametrize(
    ("application", "number"),
    [
        ("{args: {model: m, version: 1}}", 1),
        ("{args: {model: m, version: '1'}, deployments: [{name: replica, num_replicas: 4}]}", 4),
        ("{args: {model: m, version: 1}, deployments: [{num_replicas: auto}]}", 1),
        (
            "{args: {model: m, version: 1}, deployments: [autoscaling_config: {min_replicas: 2}]}",
            2,
        ),
        ("{name: other, import_path: a.b:c}", None),
        ("{args: {model: m, version: newest}}", None),
        ("{args: {model: m, version: .inf}}", None),
        ("words", None),
        ("{args: {model: m, version: 1}, deployments: [words]}", 1),
        ("{args: {model: m, version: 1}, deployments: 7}", 1),
        ("{args: {model: m, version: 1}, deployments: [{autoscaling_config: x}]}", 1),
    ],
)
def test_an_application_counts_by_its_least_replicas(application: str, number: int | None) -> None:
    found = replicas_asked_for(service(f"applications: [{application}]"))
    assert found == ({} if number is None else {("m", 1): number})


@pytest.mark.parametrize(
    "text", [None, "", "applications:", "- a", "a: [", "applications: 7", "a: 2001-99-99"]
)
def test_a_text_without_applications_asks_for_none(text: str | None) -> None:
    assert replicas_asked_for(service(text)) == {}
