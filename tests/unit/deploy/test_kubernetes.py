"""`deploy/kubernetes`: valid by Kubernetes' own schemas, and of one piece with the command line and its page."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import click
import pytest
import yaml

from fairlog.cli.main import cli
from fairlog.cli.target import Target
from fairlog.pools.spec import Kubernetes, read_pool
from scheduler.store.acl import ROLES
from tests.unit.deploy.kubernetes import DOCUMENTS, FOLDER, ROOT, WORKLOADS, mounts, secrets, variables

SETTINGS = (ROOT / "docs" / "settings.md").read_text()
CONTAINERS = [
    pytest.param(pod, container, id=f"{name}-{container['name']}")
    for name, pod in WORKLOADS.items()
    for container in [*pod.get("initContainers", []), *pod["containers"]]
]
Spec = dict[str, Any]
COMPONENT = "app.kubernetes.io/component"


def of_kind(kind: str) -> list[Spec]:
    return [each for each in DOCUMENTS if each["kind"] == kind]


def errors(document: Spec) -> list[str]:
    """What is wrong with an object by the schemas of Kubernetes."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, "1.31", strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error.message)]
    return []


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_object_is_valid_by_the_schemas_of_kubernetes() -> None:
    assert {each["metadata"]["name"]: found for each in DOCUMENTS if (found := errors(each))} == {}
    wrong = {**WORKLOADS["api"], "containers": [{**WORKLOADS["api"]["containers"][0], "imago": "fairlog"}]}
    deployment = next(each for each in of_kind("Deployment") if each["metadata"]["name"] == "api")
    assert errors({**deployment, "spec": {**deployment["spec"], "template": {"metadata": {}, "spec": wrong}}})


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_the_base_with_the_file_of_the_pool(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    shutil.copytree(FOLDER, tmp_path / "base")
    (overlay / "kustomization.yaml").write_text(
        "resources: [../base]\nimages: [{name: fairlog, newName: registry.example.org/fairlog, newTag: 0.3.0}]\n"
    )
    said = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, check=True).stdout
    built = list(yaml.safe_load_all(said))
    (config,) = [each for each in built if each["kind"] == "ConfigMap"]
    assert config["data"] == {"pool.toml": (FOLDER / "pool.toml").read_text()}
    assert len(built) == len(DOCUMENTS) + 1
    assert said.count("image: registry.example.org/fairlog:0.3.0") == 6
    assert "image: fairlog" not in said
    assert f"name: {config['metadata']['name']}" in said.partition("kind: Deployment")[2]


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_each_command_is_one_of_this_command_line(pod: Spec, container: Spec) -> None:
    words: list[str] = container.get("command") or container["args"]
    if container["name"] == "store":
        assert words[0] == "valkey-server"
    elif words[0] != "install":
        verb = cli.get_command(click.Context(cli), words[0])
        assert verb is not None
        verb.make_context(words[0], words[1:], obj=Target())
    for name, value in variables(container).items():
        assert f"`{name}`" in SETTINGS or name == "XDG_STATE_HOME"
        assert not value.startswith("/") or any(value.startswith(path) for path in mounts(pod, container)), value
    for path in re.findall(r"/run/[\w/.-]+", " ".join(words)):
        assert any(path.startswith(mounted) for mounted in mounts(pod, container)), path


def test_each_secret_and_each_file_of_it_is_made_by_the_page_and_used() -> None:
    used: dict[str, set[str]] = {}
    for pod in WORKLOADS.values():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            probes = [container.get(f"{what}Probe", {}) for what in ("liveness", "readiness", "startup")]
            text = f"{container.get('command')} {container.get('args')} {variables(container)} {probes}"
            for path, volume in mounts(pod, container).items():
                if "secret" in volume:
                    files = used.setdefault(volume["secret"]["secretName"], set())
                    files |= {PurePosixPath(found).name for found in re.findall(rf"{path}/[\w.-]+", text)}
    assert {name: sorted(files) for name, files in used.items()} == {
        name: sorted(files) for name, files in secrets().items()
    }


def test_each_program_has_a_user_of_the_store_and_its_password() -> None:
    seen = {}
    for name, pod in WORKLOADS.items():
        for container in pod["containers"]:
            said = variables(container)
            if "FAIRLOG_STORE" in said:
                user = re.fullmatch(r"redis://([a-z-]+)@store:6379/0", said["FAIRLOG_STORE"])
                assert user is not None
                assert PurePosixPath(said["FAIRLOG_STORE_PASSWORD_FILE"]).name == user[1]
                seen[name] = user[1]
    assert seen == {"master": "fairlog-master", "api": "fairlog-api", "auditor": "fairlog-auditor"}
    assert set(seen.values()) <= {role.user for role in ROLES}


def test_services_policies_and_addresses_name_ports_that_containers_have() -> None:
    ports = {
        (name, port["name"]): port["containerPort"]
        for name, pod in WORKLOADS.items()
        for container in pod["containers"]
        for port in container.get("ports", [])
    }
    services = {}
    for service in of_kind("Service"):
        (port,) = service["spec"]["ports"]
        assert ports[service["spec"]["selector"][COMPONENT], port["targetPort"]] == port["port"]
        services[service["metadata"]["name"]] = port["port"]
    assert services == {"store": 6379, "api": 8080}
    for policy in of_kind("NetworkPolicy"):
        component = policy["spec"]["podSelector"].get("matchLabels", {}).get(COMPONENT)
        for rule in policy["spec"].get("ingress", []):
            assert all((component, port["port"]) in ports for port in rule.get("ports", []))
    assert f"0.0.0.0:{ports['api', 'http']}" in WORKLOADS["api"]["containers"][0]["args"]
    assert variables(WORKLOADS["master"]["containers"][0])["FAIRLOG_METRICS"] == f"0.0.0.0:{ports['master', 'metrics']}"
    assert variables(WORKLOADS["pool"]["containers"][0])["FAIRLOG_API"] == f"http://api:{services['api']}"


def test_the_pool_is_one_and_may_do_in_the_namespace_of_its_workers_what_it_asks_for() -> None:
    pool = read_pool(FOLDER / "pool.toml")
    assert isinstance(pool.provider, Kubernetes)
    assert pool.api == "http://api.fairlog:8080"
    (role,), (binding,) = of_kind("Role"), of_kind("RoleBinding")
    assert pool.provider.namespace == role["metadata"]["namespace"] == binding["metadata"]["namespace"]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["list", "create", "delete"]}
    ]
    assert binding["subjects"][0]["name"] == WORKLOADS["pool"]["serviceAccountName"]
    (deployment,) = [each for each in of_kind("Deployment") if each["metadata"]["name"] == "pool"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (1, "Recreate")
    others = [pod for name, pod in WORKLOADS.items() if name != "pool"]
    assert all(pod["automountServiceAccountToken"] is False for pod in others)


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_nothing_has_privileges_and_each_is_bounded_and_watched(pod: Spec, container: Spec) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == confined
    if container in pod["containers"]:
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        assert ("livenessProbe" in container and "startupProbe" in container) or container["name"] == "pool"


def test_budgets_and_policies_select_workloads_that_there_are() -> None:
    components = {*WORKLOADS}
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind("PodDisruptionBudget")}
    assert {name: spec["maxUnavailable"] for name, spec in budgets.items()} == {"store": 0, "master": 1, "api": 1}
    for name, spec in budgets.items():
        assert spec["selector"]["matchLabels"][COMPONENT] == name
    for workload in (*of_kind("Deployment"), *of_kind("StatefulSet")):
        spec = workload["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"][COMPONENT] == workload["metadata"]["name"]
    text = (FOLDER / "network.yaml").read_text()
    named = set(re.findall(rf"{COMPONENT}: (\w+)", text)) | {"master", "api", "auditor"}
    assert named <= components
    everything = [each for each in of_kind("NetworkPolicy") if each["spec"]["podSelector"] == {}]
    assert {each["metadata"]["namespace"] for each in everything} == {"fairlog", "fairlog-workers"}


def test_the_store_is_the_one_of_compose_and_keeps_what_is_acknowledged() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["store"]
    (store,) = WORKLOADS["store"]["containers"]
    assert store["image"] == compose["image"]
    moved = [word.replace("/run/secrets/", "/run/secrets/fairlog/") for word in compose["command"]]
    assert store["args"] == moved
    (stateful,) = [each for each in of_kind("StatefulSet") if each["metadata"]["name"] == "store"]
    assert [each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]] == ["data"]
