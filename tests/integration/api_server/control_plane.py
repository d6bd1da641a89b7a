"""A real etcd, API server and, where they are wanted, more of a control plane; no kubelet.

The environment variable KUBEBUILDER_ASSETS names the folder of their binaries, as with
controller-runtime.
"""

import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lightkube import KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, User

VARIABLE = "KUBEBUILDER_ASSETS"
NAMESPACE = "smelt"
# Of a machine that does much else; a control plane of its own is ready within seconds.
LIMIT_S = 120.0
_ADMIN, _CONTROLLER = "admin-token", "controller-token"
_TOKENS = f"""{_ADMIN},admin,1,system:masters
{_CONTROLLER},system:serviceaccount:{NAMESPACE}:smelt-controller,2,system:serviceaccounts
"""


def binary(name: str) -> str:
    """The path of a part of Kubernetes; skips the test where it is absent, and names it."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        pytest.skip(f"{VARIABLE} is not set: it names a folder with kube-apiserver, etcd, kubectl")
    found = shutil.which(name, path=folder)
    if found is None:
        pytest.skip(f"{name} is absent from {VARIABLE}={folder}")
    return found


class ControlPlane:
    """Processes of one cluster; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Nothing runs yet; `folder` is empty, and for files of this cluster alone."""
        self._folder, self._stack = folder, ExitStack()
        self._port, self._etcd = free_port(), f"http://127.0.0.1:{free_port()}"
        self._kubectl = binary("kubectl")
        self._binaries = {name: binary(name) for name in ("etcd", "kube-apiserver")}

    def __enter__(self) -> Self:
        """Start etcd and the API server, and wait until that is ready."""
        (self._folder / "tokens.csv").write_text(_TOKENS)
        self._write_service_account_key()
        peers = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            "--data-dir",
            str(self._folder / "etcd"),
            "--unsafe-no-fsync",
            "--listen-client-urls",
            self._etcd,
            "--advertise-client-urls",
            self._etcd,
            "--listen-peer-urls",
            peers,
            "--initial-advertise-peer-urls",
            peers,
            "--initial-cluster",
            f"default={peers}",
        )
        key = str(self._folder / "service-account.key")
        self._start(
            "kube-apiserver",
            "--etcd-servers",
            self._etcd,
            "--secure-port",
            str(self._port),
            "--bind-address",
            "127.0.0.1",
            "--advertise-address",
            "127.0.0.1",
            "--cert-dir",
            str(self._folder / "certificates"),
            "--authorization-mode",
            "RBAC",
            "--token-auth-file",
            str(self._folder / "tokens.csv"),
            "--service-account-issuer",
            "https://kubernetes.default.svc",
            "--service-account-key-file",
            key,
            "--service-account-signing-key-file",
            key,
            "--service-cluster-ip-range",
            "10.0.0.0/24",
            "--disable-admission-plugins",
            "ServiceAccount",
        )
        self._write_kubeconfig()
        self._wait_until_ready()
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes, the last one first."""
        self._stack.close()

    def start_controllers(self, *names: str) -> None:
        """Start a controller manager with these controllers alone."""
        self._start(
            "kube-controller-manager",
            "--kubeconfig",
            str(self._folder / "kubeconfig"),
            "--controllers",
            ",".join(names),
            "--leader-elect=false",
            "--secure-port",
            "0",
        )

    def kubectl_run(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as an administrator; returns what it printed."""
        done = self._run(*arguments, text=text)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def first_line(self, *arguments: str) -> str:
        """Run kubectl until it printed a line: for what it watches."""
        command = self._command(*arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.kill()
        return line

    def _command(self, *arguments: str) -> list[str]:
        return [self._kubectl, "--kubeconfig", str(self._folder / "kubeconfig"), *arguments]

    def _run(self, *arguments: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self._command(*arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    @property
    def controller(self) -> SingleConfig:
        """How Smelt's controller finds the API server: with its ServiceAccount's rights alone."""
        cluster = Cluster(server=f"https://127.0.0.1:{self._port}", insecure=True)
        user = User(token=_CONTROLLER)
        config = KubeConfig.from_one(cluster=cluster, user=user, namespace=NAMESPACE).get()
        assert config is not None
        return config

    def _start(self, name: str, *arguments: str) -> None:
        path = self._binaries.get(name) or binary(name)
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen([path, *arguments], stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _write_service_account_key(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        (self._folder / "service-account.key").write_bytes(pem)

    def _write_kubeconfig(self) -> None:
        server = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": context}],
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {"token": _ADMIN}}],
        }
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(document))

    def _wait_until_ready(self) -> None:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}/readyz", headers={"Authorization": f"Bearer {_ADMIN}"}
        )
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(request, context=unverified, timeout=5.0):
                    return True
            except OSError:
                return False

        self._until(is_ready, "the API server is not ready")

    def until_allowed(self, verb: str, resource: str) -> None:
        """Wait until the controller has a right that was granted just now."""
        asked = ("auth", "can-i", verb, resource, "-n", NAMESPACE)
        account = f"--as=system:serviceaccount:{NAMESPACE}:smelt-controller"
        self._until(
            lambda: self._run(*asked, account).returncode == 0, f"may not {verb} {resource}"
        )

    def _until(self, is_so: Callable[[], bool], fault: str) -> None:
        ends_s = time.monotonic() + LIMIT_S
        while not is_so():
            log = (self._folder / "kube-apiserver.log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < ends_s, f"{fault}\n{log}"
            time.sleep(0.1)  # neither a server that starts nor an authorizer has an event


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
