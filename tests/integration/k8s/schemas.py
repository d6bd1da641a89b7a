"""Object schemas: Kubernetes' own kinds, and custom resources by their projects' definitions."""

import functools
import os
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.integration.k8s.objects import Object, Objects, builder_job, title
from tests.integration.k8s.rendering import ROOT

KUBERNETES = "1.34"
# Not kept here: they are their projects' own.
DEFINITIONS = Path(os.environ.get("SMELT_TEST_CRDS") or ROOT.parent / "shared" / "crds")
CUSTOM_GROUPS = ("ray.io", "gateway.networking.k8s.io", "monitoring.coreos.com")
Schema = dict[str, Any]


def check_kubernetes_kinds(objects: Objects) -> list[str]:
    """Every object that is not a custom resource fits its schema, and has no unknown field."""
    findings = []
    for item in [*objects, builder_job(objects)]:
        if group_of(item) in CUSTOM_GROUPS:
            continue
        try:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            findings.append(f"{title(item)}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            findings.append(f"{title(item)}: no such kind in {item['apiVersion']}")
    return findings


def check_custom_resources(objects: Objects) -> list[str]:
    """Every custom resource fits its definition, and has no unknown field."""
    findings = []
    for item in objects:
        if group_of(item) not in CUSTOM_GROUPS:
            continue
        validator = _validator(group_of(item), item["apiVersion"], item["kind"])
        findings += [
            f"{title(item)}: {error.json_path}: {error.message[:300]}"
            for error in validator.iter_errors(_without_nulls(item))
        ]
    return findings


def group_of(item: Object) -> str:
    """The API group; "" for the core."""
    group, _, version = str(item["apiVersion"]).rpartition("/")
    assert version
    return group


@functools.cache
def _validator(group: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    if not DEFINITIONS.is_dir():
        pytest.skip(
            f"{DEFINITIONS} is absent: custom resources were not validated; SMELT_TEST_CRDS names "
            "a folder with their CustomResourceDefinitions"
        )
    for path in sorted(DEFINITIONS.glob(f"{group}_*.yaml")):
        definition = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        if definition["spec"]["names"]["kind"] == kind:
            return jsonschema.Draft202012Validator(_schema_of(definition, api_version))
    raise AssertionError(f"no definition of {api_version} {kind} in {DEFINITIONS}")


def _schema_of(definition: Object, api_version: str) -> Schema:
    (served,) = (
        version
        for version in definition["spec"]["versions"]
        if f"{definition['spec']['group']}/{version['name']}" == api_version
    )
    schema: Schema = _strict(served["schema"]["openAPIV3Schema"])
    # The API server's own, which a definition leaves open.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _strict(node: Any) -> Any:
    """An OpenAPI schema as JSON Schema, in which a field that is not named is an error.

    The API server drops unknown fields in silence: a misspelt one would have no effect.
    """
    if isinstance(node, list):
        return [_strict(part) for part in node]
    if not isinstance(node, dict):
        return node
    # A default or an enum holds values, which are no schemas.
    schema = {
        key: value if key in ("default", "enum", "required", "example") else _strict(value)
        for key, value in node.items()
    }
    return _closed(_translated(schema))


def _translated(schema: Schema) -> Schema:
    """Kubernetes' ways of saying it, in JSON Schema's words."""
    if schema.get("x-kubernetes-int-or-string") is True:
        schema.pop("type", None)
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("nullable") is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return schema


def _closed(schema: Schema) -> Schema:
    properties = schema.get("properties")
    # A schema's own field may be called `properties`, and is no schema then.
    if not isinstance(properties, dict) or not isinstance(schema.get("type"), str | list):
        return schema
    if "additionalProperties" not in schema and not schema.get(
        "x-kubernetes-preserve-unknown-fields"
    ):
        schema["additionalProperties"] = False
    # The API server fills in defaults before it asks what is missing.
    wanted = [name for name in schema.get("required", []) if "default" not in properties[name]]
    schema["required"] = wanted
    return schema


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
