"""How many replicas a RayService's serveConfigV2 asks for."""

import logging
from collections.abc import Mapping
from typing import Any

import yaml

from services.contracts.model.yaml_text import value_from_yaml

logger = logging.getLogger(__name__)

# By model and version.
Wanted = dict[tuple[str, int], int]


def replicas_asked_for(service: Mapping[str, Any]) -> Wanted:
    """Replicas of each model version, over all generations.

    What is no application of ours is left out, and so is a text that cannot be read: KubeRay
    refuses that itself, and serves on as before.
    """
    wanted: Wanted = {}
    for application in _applications(service):
        args = application.get("args") or {}
        try:
            key = str(args["model"]), int(args["version"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        wanted[key] = wanted.get(key, 0) + _num_replicas(application)
    return wanted


def _applications(service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    name = service["metadata"]["name"]
    try:
        document = value_from_yaml((service.get("spec") or {}).get("serveConfigV2") or "")
    except yaml.YAMLError as error:
        logger.error("serveConfigV2 of RayService '%s' cannot be read: %s", name, error)
        return []
    found = document.get("applications") if isinstance(document, dict) else None
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, dict)]


def _num_replicas(application: Mapping[str, Any]) -> int:
    """Of its one deployment; with autoscaling the least that are always there."""
    deployments = application.get("deployments")
    for deployment in deployments if isinstance(deployments, list) else ():
        if not isinstance(deployment, dict):
            continue
        scaling = deployment.get("autoscaling_config")
        least = scaling.get("min_replicas") if isinstance(scaling, dict) else None
        asked = deployment.get("num_replicas") if least is None else least
        if isinstance(asked, int):
            return asked
    return 1
