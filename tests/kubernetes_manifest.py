"""The manifest of a server, as a person writes it, and an external model that has it."""

import copy
from typing import Any

import yaml

from services.contracts.external.external_model import ExternalModel

TEXT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  selector:
    matchLabels: {app: vllm}
  template:
    metadata:
      labels: {app: vllm}
    spec:
      containers:
        - name: vllm
          image: registry.example.com/vllm:1
          args: [--model, qwen]
          resources: {limits: {nvidia.com/gpu: "1"}}
---
apiVersion: v1
kind: Service
metadata: {name: chat}
spec:
  selector: {app: vllm}
  ports:
    - port: 80
      targetPort: 8000
---
"""
URL = "k8s+openai+http://chat:80/v1"


def documents() -> tuple[dict[str, Any], ...]:
    """Deployment and Service."""
    return tuple(copy.deepcopy(each) for each in yaml.safe_load_all(TEXT) if each)


def external_server(url: str = URL, version: int = 1, **fields: Any) -> ExternalModel:
    """As `smelt models add --manifest` publishes it."""
    given = {"name": "chat", "remote_name": "Qwen2.5", "manifest": documents()} | fields
    return ExternalModel(url=url, version=version, **given)
