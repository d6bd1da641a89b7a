"""Manifests of servers that Kubernetes runs: what is taken, and what a version makes of it."""

from collections.abc import Callable
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from pydantic import ValidationError

from services.contracts.external.external_model import ExternalModel, ServerProtocol, Starter
from services.contracts.external.server_manifest import SERVER_LABEL
from tests.kubernetes_manifest import documents, external_server

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def test_a_version_has_valid_objects_of_its_own() -> None:
    model = external_server(version=3)
    objects = model.objects()
    for each in objects.values():
        kubernetes_validate.validate(each, "1.34", strict=True)
        assert each["metadata"]["annotations"] == {
            "smelt.dev/model": "chat",
            "smelt.dev/version": "3",
        }
        assert each["metadata"]["labels"] == {SERVER_LABEL: "vllm-3"}
    deployment, service = objects["Deployment"], objects["Service"]
    assert (deployment["metadata"]["name"], service["metadata"]["name"]) == ("vllm-3", "chat-3")
    selected = {"app": "vllm", SERVER_LABEL: "vllm-3"}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == selected
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == selected | {"smelt.dev/part": "model-server"}
    # As it was published.
    assert model.manifest == documents()


def pod_labels(deployment: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


def test_pods_do_not_pass_for_another_part() -> None:
    manifest = documents()
    pod_labels(manifest[0])["smelt.dev/part"] = "gateway"
    objects = external_server(manifest=manifest).objects()
    assert pod_labels(objects["Deployment"])["smelt.dev/part"] == "model-server"


def test_what_is_null_is_absent() -> None:
    manifest = documents()
    manifest[0]["metadata"] |= {"labels": None, "annotations": None, "finalizers": None}
    manifest[1]["spec"]["selector"] = None
    objects = external_server(manifest=manifest).objects()
    assert objects["Deployment"]["metadata"]["labels"] == {SERVER_LABEL: "vllm-1"}
    assert objects["Service"]["spec"]["selector"] == {SERVER_LABEL: "vllm-1"}


def test_a_model_is_asked_behind_the_service() -> None:
    model = external_server()
    assert (model.starter, model.protocol) == (Starter.KUBERNETES, ServerProtocol.OPENAI)
    assert model.words == (
        "'Qwen2.5' of an OpenAI server that Kubernetes runs, k8s+openai+http://chat:80/v1"
    )
    asked = model.behind("chat-1.smelt.svc:80")
    assert (asked.url, asked.starter) == ("openai+http://chat-1.smelt.svc:80/v1", None)
    # An older gateway reads the document of a plain server.
    assert b"manifest" not in asked.canonical_json()
    triton = external_server("k8s+grpc://chat:80")
    assert triton.protocol is ServerProtocol.KSERVE
    assert triton.behind("chat-1.smelt.svc:80").url == "grpc://chat-1.smelt.svc:80"
    assert ExternalModel.from_json(triton.canonical_json()) == triton


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d, s: d.update(kind="StatefulSet"), "found apps/v1 StatefulSet, v1 Service; expec"),
        (lambda d, s: d.clear(), "found an object without kind, v1 Service; expected one apps/v1"),
        (lambda d, s: s["metadata"].update(name="x"), "found Service x with ports .80.; the URL"),
        (lambda d, s: s["spec"]["ports"][0].update(port=81), "the URL is of Service chat, port 80"),
        (lambda d, s: s["spec"].update(ports=[80]), "found Service chat with ports .."),
        (lambda d, s: s["spec"].update(type="NodePort"), "Service chat is reached from outside"),
        (lambda d, s: s["spec"].update(externalIPs=["10.0.0.1"]), "expected type ClusterIP and no"),
        (lambda d, s: d["metadata"].clear(), "Deployment without metadata.name: give it one"),
        (
            lambda d, s: s["metadata"].update(finalizers=["x/y"]),
            "Service with metadata.finali",
        ),
        (
            lambda d, s: d["metadata"].update(ownerReferences=[{"name": "x"}], finalizers=["x/y"]),
            "Deployment with metadata.finalizers and metadata.ownerReferences; expected none",
        ),
        (
            lambda d, s: d["spec"]["template"]["metadata"].update(finalizers=["x/y"]),
            "pod template with metadata.finalizers; expected none",
        ),
        (
            lambda d, s: pod_labels(d).update({"smelt.dev/generation": "a", "ray.io/cluster": "b"}),
            "labels ray.io/cluster, smelt.dev/generation; expected none of smelt.dev/ and ray.io/",
        ),
        (lambda d, s: d.update(spec=[]), "Deployment: spec.selector.matchLabels: expected a map"),
    ],
)
def test_another_manifest_is_refused(change: Change, why: str) -> None:
    manifest = documents()
    change(*manifest)
    with pytest.raises(ValidationError, match=why):
        external_server(manifest=manifest)
    # One that an earlier Smelt published is read all the same.
    stored = external_server().model_copy(update={"manifest": manifest})
    read = ExternalModel.from_json(stored.canonical_json())
    with pytest.raises(ValueError, match=why):
        read.objects()


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("openai+http://chat:80/v1", {}),
        ("k8s+openai+http://chat:80/v1", {"manifest": ()}),
        ("k8s+ray+openai://a.b:c", {}),
        ("k8s+grpc://chat", {}),
    ],
)
def test_a_manifest_is_of_such_a_url_alone(url: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="a manifest .* is wanted|expected"):
        external_server(url, **fields)
