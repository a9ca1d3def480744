"""`deploy/kubernetes` started on this machine, as its page says: each container a process, each volume a folder."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlog.local.store import bundled_server
from tests.integration.cli_rig import ROOT, Service, Shell
from tests.integration.kubernetes_rig import FakeKubernetes
from tests.unit.deploy.kubernetes import FOLDER, WORKLOADS, typed, variables
from tests.waiting import wait_until

LOCAL = {"FAIRLOG_LAUNCHER": "plain", "FAIRLOG_UNSAFE_PLAIN": "1"}
"""In the image there are no cells; here they would work, as root."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Pods(FakeKubernetes):
    """The pods of the pool, as processes."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(page=500)
        self.machine = machine
        self.running: dict[str, psutil.Popen] = {}

    def made(self, name: str) -> None:
        """Start the pod's container with the variables of its secret."""
        kind, _, worker = name.partition("/")
        if kind != "pods":
            return
        (container,) = self.objects[name]["spec"]["containers"]
        (source,) = container["envFrom"]
        given = self.objects[f"secrets/{source['secretRef']['name']}"]["stringData"]
        shell = Shell(self.machine.folder / worker)
        shell.env |= LOCAL | {key: self.machine.here(value, "pool") for key, value in given.items()}
        with (shell.home / "log").open("wb") as log:
            command = [sys.executable, "-m", "fairlog", *container["args"]]
            self.running[worker] = psutil.Popen(command, env=shell.env, cwd=ROOT, stdout=log, stderr=log)

    def gone(self, name: str) -> None:
        """Kill it."""
        if (process := self.running.pop(name.removeprefix("pods/"), None)) is not None:
            for each in [*process.children(recursive=True), process]:
                each.kill()
            process.wait()


class Machine:
    """A machine that stands for a cluster: what Kubernetes has of it is below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shell = Shell(folder / "operator")
        self.ports = {"store:6379": free_port(), "api:8080": free_port(), "0.0.0.0:9464": free_port()}
        self.stack = ExitStack()
        self.pods = Pods(self)

    def here(self, text: str, name: str) -> str:
        """The text with the places of this machine: addresses, and paths where the pod of that name has volumes."""
        for address, port in {**self.ports, "api.fairlog:8080": self.ports["api:8080"]}.items():
            text = text.replace(address, f"127.0.0.1:{port}")
        text = text.replace("0.0.0.0:8080", f"127.0.0.1:{self.ports['api:8080']}")
        return re.sub(r"(?<![\w.:])/(run|data|etc|tmp)\b", rf"{self.folder}/pods/{name}/\1", text)

    def mount(self, name: str) -> None:
        """Make the folders of the pod's volumes; those of secrets have the files that people made."""
        pod = WORKLOADS[name]
        volumes = {each["name"]: each for each in pod.get("volumes", [])}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            for mount in container["volumeMounts"]:
                place = Path(self.here(mount["mountPath"], name))
                place.mkdir(parents=True, exist_ok=True)
                place.chmod(0o700)
                if "secret" in (volume := volumes.get(mount["name"], {})):
                    shutil.copytree(self.folder / volume["secret"]["secretName"], place, dirs_exist_ok=True)

    def environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        """The variables of a container here."""
        return {key: self.here(value, name) for key, value in variables(container).items()}

    def start(self, name: str) -> Service | None:
        """Start the pod: what initialises it to its end, then its container."""
        self.mount(name)
        pod = WORKLOADS[name]
        for first in pod.get("initContainers", []):
            subprocess.run([self.here(word, name) for word in first["command"]], check=True)
        (container,) = pod["containers"]
        words = [self.here(word, name) for word in container["args"]]
        if name == "store":
            command = [str(bundled_server()), *words[1:], "--port", str(self.ports["store:6379"])]
            process = self.stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            self.stack.callback(process.kill)
            probe = container["startupProbe"]["exec"]["command"][-1]
            user, file = re.search(r"--user (\S+)", probe), re.search(r"\$\(cat ([^)]+)\)", probe)
            assert user is not None
            assert file is not None
            password = Path(self.here(file[1], name)).read_text().strip()
            store = f"redis://{user[1]}:{password}@127.0.0.1:{self.ports['store:6379']}/0"
            wait_until(lambda: answers(store), "the store")
            return None
        shell = Shell(self.folder / "pods" / name / "home")
        shell.env |= self.environment(name, container) | {"XDG_DATA_HOME": self.here("/data", name)}
        return self.stack.enter_context(Service(shell, *words, name=name))

    def type(self, words: list[str]) -> None:
        """What a command of the page does here."""
        folder = self.shell.home
        match words:
            case ["docker", *_] | ["kubectl", "apply", *_] | ["kubectl", "--namespace", "fairlog", "rollout", *_]:
                pass
            case ["kubectl", "--namespace", "fairlog", "port-forward", "service/api", "8080"]:
                pass
            case ["kubectl", "--namespace", "fairlog", "create", "secret", "generic", name, *files]:
                (self.folder / name).mkdir()
                for file in files:
                    shutil.copy(folder / file.removeprefix("--from-file="), self.folder / name)
            case [
                "kubectl",
                "--namespace",
                "fairlog",
                "exec",
                "deploy/api",
                "--container",
                "api",
                "--",
                "fairlog",
                *verb,
            ]:
                inside = Shell(self.folder / "inside")
                inside.env |= self.environment("api", WORKLOADS["api"]["containers"][0])
                *verb, to = verb if ">" in verb else [*verb, ""]
                out = inside.ok(*[word for word in verb if word != ">"])
                if to:
                    (folder / to).write_text(out)
            case ["mkdir" | "fairlog", *_]:
                line = " ".join(words)
                assert self.shell.sh(line).code == 0, line
            case _:
                raise AssertionError(words)


def answers(url: str) -> bool:
    """Whether the store answers."""
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        with Redis.from_url(url) as store:
            return bool(store.ping())
    except RedisError:
        return False


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    with found.stack:
        try:
            yield found
        finally:
            for worker in [*found.pods.running]:
                found.pods.gone(worker)


@pytest.mark.slow
def test_what_the_page_says_starts_a_cluster_whose_workers_are_pods(machine: Machine) -> None:
    *commands, submit = list(typed())
    begun = False
    pool: Service | None = None
    with machine.pods.served() as port:
        for words in commands:
            if not begun and words[:3] == ["kubectl", "apply", "--kustomize"]:
                begun = True
                machine.start("store")
                for name in ("master", "api", "auditor"):
                    service = machine.start(name)
                    assert service is not None
                    service.hear("READY=1")
            machine.type(words)
        machine.mount("pool")
        file = Path(machine.here("/etc/fairlog/pool.toml", "pool"))
        text = machine.here((FOLDER / "pool.toml").read_text(), "pool").replace('"8G"', '"2G"')
        text = text.replace("least = 1\n", 'least = 0\nevery = "1s"\n').replace('"5m"', '"1s"')
        file.write_text(f'{text}server = "http://127.0.0.1:{port}"\n')
        pool = machine.start("pool")
        assert pool is not None
        variable, given = [word.partition("=")[2] for word in submit[:2]]
        machine.shell.env |= {
            "FAIRLOG_API": machine.here(variable.replace("127.0.0.1:8080", "api:8080"), "api"),
            "FAIRLOG_TOKEN_FILE": str(machine.shell.home / given),
        }
        assert submit[2] == "fairlog"
        assert machine.shell.ok(*submit[3:]).splitlines()[0].startswith("app-")
        wait_until(lambda: not machine.pods.objects, "the end of the workers")
        assert "pods-1 is asked for" in pool.log.read_text()
    auditor = Shell(machine.folder / "check")
    auditor.env |= machine.environment("auditor", WORKLOADS["auditor"]["containers"][0])
    assert "This log follows its rules" in auditor.ok("audit")
    assert any(Path(machine.here("/data", "auditor")).iterdir())
