"""Who provides the workers of a pool: commands, Slurm or Kubernetes. Each starts, stops and lists by name."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import httpx

from fairlog.pools.spec import Commands, Kubernetes, Pool, Slurm
from scheduler.model.errors import FairlogError
from scheduler.service.addresses import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

_LABEL = "fairlog-pool"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MOST_SAID = 300
AGENT_MB = 256
"""What a job or a pod has beside what its worker offers, for the agent itself."""
_OF_THE_POOL = frozenset(
    {
        TOKEN_VARIABLE,
        TOKEN_FILE_VARIABLE,
        "FAIRLOG_DATA",
        "FAIRLOG_STORE",
        "FAIRLOG_STORE_PASSWORD_FILE",
        "FAIRLOG_KEYS",
    }
)
"""Variables that no command is to see, nor a job that inherits them: by their values the pool is an operator."""
_BETWEEN = """
import subprocess, sys
try:
    sys.exit(subprocess.run(sys.argv[2:], timeout=float(sys.argv[1])).returncode)
except subprocess.TimeoutExpired:
    sys.exit(f"it did not end within {sys.argv[1]} s")
except OSError as error:
    sys.exit(f"it cannot be run: {error.strerror}")
"""
"""Runs a command and keeps descriptors from it that are inherited: the lock of the pool is held while it runs, also if
the pool has died, and not by what the command leaves running."""


class ProviderFailed(FairlogError):
    """The provider did not do what it was asked."""


class Instance(NamedTuple):
    """What the provider has under a worker's name."""

    leaving: bool = False
    """Whether it is about to be taken away."""
    broken: bool = False
    """Whether something of it is left that is no worker and does not become one."""


class Order(NamedTuple):
    """A worker to start: its id, the variables and the arguments of `fairlog` with which it joins."""

    worker: str
    environment: Mapping[str, str]
    arguments: Sequence[str]


class Provider(Protocol):
    """Starts, stops and lists what runs workers. All raise ProviderFailed."""

    def present(self) -> dict[str, Instance]:
        """What is there, or was asked for, by the worker's id; may contain what is no worker of the pool."""

    def start(self, order: Order) -> None:
        """Ask for it; returns without waiting until it runs."""

    def stop(self, worker: str) -> None:
        """End it; nothing if it is gone."""


class CommandRunner:
    """Runs commands, each for at most `timeout_s`; `lock` is a descriptor that stays open while one runs."""

    def __init__(self, lock: int, timeout_s: int) -> None:
        self._lock, self._timeout_s = lock, timeout_s

    def __call__(self, command: Sequence[str], text: str = "", environment: Mapping[str, str] | None = None) -> str:
        """What it printed. Raises: ProviderFailed if it does not end with 0."""
        done = subprocess.run(  # noqa: S603 - the operator's own command
            [sys.executable, "-I", "-S", "-c", _BETWEEN, str(self._timeout_s), *command],
            input=text,
            env={**{key: value for key, value in os.environ.items() if key not in _OF_THE_POOL}, **(environment or {})},
            pass_fds=(self._lock,),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:_MOST_SAID]
            raise ProviderFailed(f"`{shlex.join(command[:4])}` ended with exit code {done.returncode}: {said}")
        return done.stdout


class ByCommand:
    """Commands of the operator (`spec.Commands`)."""

    def __init__(self, pool: Pool, spec: Commands, run: CommandRunner) -> None:
        self._pool, self._spec, self._run = pool, spec, run

    def present(self) -> dict[str, Instance]:
        """As `Provider.present`."""
        found: dict[str, Instance] = {}
        for line in self._run(self._filled(self._spec.list, "")).splitlines():
            words = line.split()
            if words[1:] not in ([], ["leaving"]):
                raise ProviderFailed(
                    f"`{shlex.join(self._spec.list)}` printed {line[:80]!r}; a line is NAME or NAME leaving"
                )
            if words:
                found[words[0]] = Instance(leaving=len(words) > 1)
        return found

    def start(self, order: Order) -> None:
        """As `Provider.start`; the whole command line of the worker is in FAIRLOG_WORKER_COMMAND."""
        line = shlex.join(["fairlog", *order.arguments])
        self._run(
            self._filled(self._spec.start, order.worker), "", {**order.environment, "FAIRLOG_WORKER_COMMAND": line}
        )

    def stop(self, worker: str) -> None:
        """As `Provider.stop`."""
        self._run(self._filled(self._spec.stop, worker))

    def _filled(self, words: Iterable[str], worker: str) -> list[str]:
        values = {"{worker}": worker, "{cores}": str(self._pool.cores), "{memory}": str(self._pool.memory)}
        return [re.sub(r"\{(?:worker|cores|memory)\}", lambda found: values[found[0]], word) for word in words]


class BySlurm:
    """Jobs of Slurm: one a worker, named as it is. Of two jobs of a name, only one runs at a time."""

    def __init__(self, pool: Pool, spec: Slurm, run: CommandRunner) -> None:
        self._pool, self._spec, self._run = pool, spec, run

    def present(self) -> dict[str, Instance]:
        """As `Provider.present`."""
        said = self._run(["squeue", "--me", "--noheader", "--format=%j %T"])
        pairs = (line.split() for line in said.splitlines())
        return {pair[0]: Instance() for pair in pairs if len(pair) == 2 and self._pool.number(pair[0]) is not None}

    def start(self, order: Order) -> None:
        """As `Provider.start`; the invitation is in the script, which Slurm shows to the job's owner alone."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in order.environment.items()]
        script = "\n".join(["#!/bin/sh", *exports, f"exec {shlex.join([*self._spec.program, *order.arguments])}", ""])
        self._run(
            [
                "sbatch",
                "--parsable",
                f"--job-name={order.worker}",
                "--dependency=singleton",
                "--nodes=1",
                "--ntasks=1",
                f"--cpus-per-task={self._pool.cores}",
                f"--mem={self._pool.memory + AGENT_MB}M",
                f"--signal=B:TERM@{self._spec.notice}",
                "--no-requeue",
                "--output=/dev/null",
                *(f"--gres={kind}:{number}" for kind, number in self._pool.resources.items()),
                *self._spec.options,
            ],
            script,
        )

    def stop(self, worker: str) -> None:
        """As `Provider.stop`."""
        self._run(["scancel", "--me", f"--name={worker}"])


class ByKubernetes:
    """Pods, each with a secret that holds its invitation; both have the worker's name."""

    def __init__(self, pool: Pool, spec: Kubernetes) -> None:
        self._pool, self._spec = pool, spec
        self._account = Path(_ACCOUNT)
        inside = "KUBERNETES_SERVICE_HOST" in os.environ
        if not (spec.server or inside):
            raise ProviderFailed(
                "the pool runs in no pod and names no server; start `kubectl proxy`, and set server in [provider] to "
                '"http://127.0.0.1:8001"'
            )
        host = f"[{named}]" if ":" in (named := os.environ.get("KUBERNETES_SERVICE_HOST", "")) else named
        server = spec.server or f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        authority = self._account / "ca.crt"
        trusts = ssl.create_default_context(cafile=authority if authority.exists() and not spec.server else None)
        self._api = httpx.Client(base_url=server, timeout=spec.timeout, verify=trusts, trust_env=False)

    def present(self) -> dict[str, Instance]:
        """As `Provider.present`: a pod that has ended, or a secret without a pod, is broken; one in deletion leaves."""
        pods = {each["metadata"]["name"]: each for each in self._listed("pods")}
        lonely = (each["metadata"]["name"] for each in self._listed("secrets"))
        return {name: Instance(broken=True) for name in lonely if name not in pods} | {
            name: Instance(
                leaving="deletionTimestamp" in pod["metadata"],
                broken=pod.get("status", {}).get("phase") in {"Succeeded", "Failed"},
            )
            for name, pod in pods.items()
        }

    def start(self, order: Order) -> None:
        """As `Provider.start`. A pod of that name is left as it is, which is an error."""
        about = {"name": order.worker, "labels": {_LABEL: self._pool.name, "app.kubernetes.io/component": "worker"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": dict(order.environment)}
        self._ask("DELETE", f"secrets/{order.worker}", gone=True)
        self._ask("POST", "secrets", secret)
        self._ask("POST", "pods", self._pod(order, about))

    def stop(self, worker: str) -> None:
        """As `Provider.stop`; the pod first, so that what is left is found by its secret."""
        for kind in ("pods", "secrets"):
            self._ask("DELETE", f"{kind}/{worker}", gone=True)

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            query = {
                "labelSelector": f"{_LABEL}={self._pool.name}",
                "limit": "500",
                **({"continue": more} if more else {}),
            }
            page = self._ask("GET", kind, query=query)
            found += page["items"]
            more = page.get("metadata", {}).get("continue", "")
            if not more:
                return found

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        gone: bool = False,
    ) -> dict[str, Any]:
        """What the API answers; with `gone`, it is well if nothing of that name is there."""
        token = self._account / "token"
        headers = {} if self._spec.server else {"authorization": f"Bearer {token.read_text().strip()}"}
        where = f"/api/v1/namespaces/{self._spec.namespace}/{path}"
        try:
            answer = self._api.request(method, where, json=body, params=query, headers=headers)
            said: Any = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ProviderFailed(
                f"Kubernetes at {self._api.base_url} does not answer {method} {path}: {error}"
            ) from None
        if answer.is_error and not (gone and answer.status_code == httpx.codes.NOT_FOUND):
            why = said.get("message") if isinstance(said, dict) else None
            raise ProviderFailed(f"Kubernetes refuses {method} {path}: {why or answer.status_code}"[:_MOST_SAID])
        return said if isinstance(said, dict) else {}

    def _pod(self, order: Order, about: Mapping[str, Any]) -> dict[str, Any]:
        amounts = {"cpu": str(self._pool.cores), "memory": f"{self._pool.memory + AGENT_MB}Mi", **self._devices()}
        container = {
            "name": "worker",
            "image": self._spec.image,
            "args": list(order.arguments),
            "envFrom": [{"secretRef": {"name": order.worker}}],
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "livenessProbe": {
                "exec": {"command": ["fairlog", "status", "--live"]},
                "initialDelaySeconds": 60,
                "periodSeconds": 20,
                "timeoutSeconds": 10,
            },
        }
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 60,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": _merged(spec, self._spec.pod)}

    def _devices(self) -> dict[str, str]:
        """What the kinds of resources are called in Kubernetes: `gpu` is NVIDIA's device."""
        return {
            "nvidia.com/gpu" if kind == "gpu" else f"fairlog.dev/{kind}": str(number)
            for kind, number in self._pool.resources.items()
        }


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Both; of tables both tables, of lists ours and then theirs, else theirs."""
    found = dict(ours)
    for key, value in theirs.items():
        mine = found.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            found[key] = _merged(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            found[key] = [*mine, *value]
        else:
            found[key] = value
    return found


def provider_of(pool: Pool, lock: int) -> Provider:
    """The provider that the pool names; its commands keep the descriptor `lock` open."""
    run = CommandRunner(lock, pool.provider.timeout)
    match pool.provider:
        case Commands() as spec:
            return ByCommand(pool, spec, run)
        case Slurm() as spec:
            return BySlurm(pool, spec, run)
        case Kubernetes() as spec:
            return ByKubernetes(pool, spec)
