"""Finding a cluster, and what its refusals are said to be."""

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import Status
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.controller.platform import kubernetes
from services.controller.platform.kubernetes.client import (
    blocking_client,
    explained,
    find_cluster,
    status_code,
)
from services.controller.platform.kubernetes.nodes import KubernetesNodes

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u, namespace: fleet}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""

# Opens a client and has threads decode their first answers at once, each another one first.
DECODE_AT_ONCE = """
import importlib, sys, threading
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.decoders import decode_list
from services.controller.platform.kubernetes.client import blocking_client
names = [name.split(":") for name in sys.argv[1:]]
kinds = [getattr(importlib.import_module(module), kind) for module, kind in names]
cluster = KubeConfig.from_one(cluster=Cluster("http://127.0.0.1:1"), user=User()).get()
blocking_client(cluster, "fleet")
start = threading.Barrier(8)
def decode(first):
    start.wait()
    for kind in kinds[first:] + kinds[:first]:
        decode_list(b'{"items": []}', kind)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=decode, args=[index // 2]) for index in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def _answer(code: int) -> httpx2.HTTPStatusError:
    request = httpx2.Request("GET", "http://127.0.0.1/api/v1/nodes")
    response = httpx2.Response(code, request=request)
    return httpx2.HTTPStatusError("refused", request=request, response=response)


def test_the_cluster_of_a_kubeconfig_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    cluster = find_cluster()
    assert cluster.cluster.server == "http://127.0.0.1:1"
    assert cluster.namespace == "fleet"


@pytest.mark.parametrize("text", ["", "contexts: []", "current-context: x\ncontexts: []", "a: ["])
def test_a_kubeconfig_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(InvalidRequestError, match="(?s)no Kubernetes cluster found.*KUBECONFIG"):
        find_cluster()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    cluster = Cluster(server="https://127.0.0.1:1", certificate_auth=str(tmp_path / "absent.pem"))
    config = KubeConfig.from_one(cluster=cluster, user=User(), namespace="n").get()
    assert config is not None
    nodes = KubernetesNodes(config, "n", lambda: None)
    with pytest.raises(InvalidRequestError, match="certificates or credentials cannot be read"):
        nodes.start()
    nodes.stop()
    with pytest.raises(InvalidRequestError, match="certificates or credentials cannot be read"):
        blocking_client(config, "n")


def test_the_status_is_that_of_the_answer_or_of_the_stream() -> None:
    assert status_code(_answer(403)) == 403
    assert status_code(ApiError(status=Status(code=410, message="too old"))) == 410
    assert status_code(httpx2.ConnectError("no route")) is None


def test_a_forbidden_request_names_the_verb_to_grant() -> None:
    error = explained(_answer(403), "watch", Node, None)
    assert isinstance(error, NotReadyError)
    assert "cannot watch nodes in the cluster: forbidden" in str(error)
    assert "An API server also answers this while it starts" in str(error)
    assert "grant the controller's ServiceAccount the verb 'watch' on nodes" in str(error)


def test_a_refused_stream_has_the_servers_message() -> None:
    request = httpx2.Request("GET", "http://127.0.0.1/api/v1/nodes?watch=true")
    status = {"kind": "Status", "message": "nodes is forbidden: RBAC: role not found"}
    response = httpx2.Response(403, request=request, json=status)
    refused = httpx2.HTTPStatusError("Client error", request=request, response=response)
    assert "RBAC: role not found" in str(explained(refused, "watch", Node, None))


def test_a_quota_is_not_said_to_be_a_missing_permission() -> None:
    words = 'jobs.batch "build-a1" is forbidden: exceeded quota: builds, used: 3, limited: 3'
    refused = ApiError(status=Status(code=403, message=words))
    error = explained(refused, "create", Job, "x")
    assert "exceeded quota: builds" in str(error)
    assert "grant" not in str(error)


def test_other_refusals_say_what_they_are() -> None:
    unknown = explained(_answer(401), "list", Pod, "x")
    assert "token (401)" in str(unknown)
    invalid = explained(_answer(422), "create", Job, "x")
    assert isinstance(invalid, InvalidRequestError)
    assert "cannot create jobs.batch in namespace 'x'" in str(invalid)
    away = explained(httpx2.ReadTimeout(""), "list", Node, None)
    assert str(away).endswith("cannot list nodes in the cluster: ReadTimeout: no answer")


def test_without_lightkube_the_extra_to_install_is_named() -> None:
    program = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from services.contracts.errors import UnsupportedFeatureError\n"
        "from services.controller.platform.cluster_platform import open_platform\n"
        "from services.controller.settings import ControllerSettings\n"
        "folders = {'store_url': 's', 'cache_dir': 'c', 'run_dir': 'r', 'job_template': 'j'}\n"
        "settings = ControllerSettings(placement='rayservice', **folders)\n"
        "try:\n"
        "    open_platform(settings, None, print)\n"
        "except UnsupportedFeatureError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'smelt[kubernetes]'" in done.stdout


def test_threads_may_decode_their_first_answers_at_once() -> None:
    kinds = [
        f"{module}:{kind.strip()}"
        for file in Path(kubernetes.__path__[0]).glob("*.py")
        if file.name != "client.py"
        for module, names in re.findall(
            r"from (lightkube\.resources\.\w+) import ([\w, ]+)", file.read_text()
        )
        for kind in names.split(",")
    ]
    assert len(set(kinds)) >= 6
    ended = subprocess.run([sys.executable, "-c", DECODE_AT_ONCE, *sorted(set(kinds))], check=False)
    assert ended.returncode == 0
