"""Providers of workers, against programs that stand for Slurm's and a server that stands for Kubernetes' API."""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlog.pools import providers
from fairlog.pools.providers import Instance, Order, Provider, ProviderFailed, provider_of
from fairlog.pools.spec import Pool
from tests.integration.kubernetes_rig import FakeKubernetes
from tests.integration.scheduler.test_tls import authority

SLURM = """
import json, os, re, sys
from pathlib import Path
folder = Path({folder!r})
tool, *words = [Path(sys.argv[0]).name, *sys.argv[1:]]
if tool == "sbatch":
    name = next(word.partition("=")[2] for word in words if word.startswith("--job-name="))
    seen = sorted(key for key in os.environ if key.startswith("FAIRLOG_"))
    (folder / name).write_text(json.dumps([words, sys.stdin.read(), seen]))
elif tool == "squeue":
    assert words == ["--me", "--noheader", "--format=%j %T"], words
    print("\\n".join([*(f"{{file.name}} RUNNING" for file in folder.iterdir()), "mine PENDING"]))
else:
    assert words[0] == "--me", words
    (folder / words[1].removeprefix("--name=")).unlink(missing_ok=True)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a program on the PATH that keeps what it is told in a folder."""

    def put(text: str, *names: str) -> Path:
        folder = tmp_path / "kept"
        folder.mkdir()
        (tmp_path / "bin").mkdir()
        for name in names:
            program = tmp_path / "bin" / name
            program.write_text(f"#!{sys.executable}\n{text.format(folder=str(folder))}")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return folder

    return put


def made(lock: int, provider: dict[str, Any], **changes: Any) -> Provider:
    said = {"name": "burst", "most": 4, "cores": 4, "memory": "4G", "provider": provider, **changes}
    return provider_of(Pool.model_validate(said), lock)


def order(worker: str) -> Order:
    return Order(worker, {"FAIRLOG_API": "http://api:8080", "FAIRLOG_TOKEN": "fl_1"}, ["worker", "--id", worker])


@pytest.fixture
def kubernetes() -> Iterator[tuple[str, FakeKubernetes]]:
    """The URL of an API server, and what it holds."""
    fake = FakeKubernetes()
    with fake.served() as port:
        yield f"http://127.0.0.1:{port}", fake


Api = tuple[str, FakeKubernetes]


def test_pods_come_with_their_secrets_and_go_with_them(kubernetes: Api, lock: int) -> None:
    url, fake = kubernetes
    objects = fake.objects
    pod = {"nodeSelector": {"kind": "spot"}, "tolerations": [{"key": "spot"}], "securityContext": {"runAsUser": 5}}
    provider = made(lock, {"kind": "kubernetes", "image": "fairlog:1", "server": url, "pod": pod}, resources={"gpu": 2})
    assert provider.present() == {}
    provider.start(order("burst-1"))
    found = objects["pods/burst-1"]["spec"]
    assert found["nodeSelector"] == {"kind": "spot"}
    assert found["securityContext"]["runAsUser"] == 5
    assert found["securityContext"]["runAsNonRoot"]
    (container,) = found["containers"]
    assert container["args"] == ["worker", "--id", "burst-1"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "4352Mi", "nvidia.com/gpu": "2"}
    assert "fl_1" not in json.dumps(found)
    secret = objects["secrets/burst-1"]
    assert secret["stringData"] == {"FAIRLOG_API": "http://api:8080", "FAIRLOG_TOKEN": "fl_1"}
    assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    with pytest.raises(ProviderFailed, match='Kubernetes refuses POST pods: pods "burst-1" already exists'):
        provider.start(order("burst-1"))
    provider.start(order("burst-2"))
    assert provider.present() == {"burst-1": Instance(), "burst-2": Instance()}
    for _ in range(2):
        provider.stop("burst-1")
    provider.stop("burst-2")
    assert (provider.present(), objects) == ({}, {})


def test_a_pod_in_deletion_leaves_and_one_that_has_ended_is_broken(kubernetes: Api, lock: int) -> None:
    url, fake = kubernetes
    objects = fake.objects
    provider = made(lock, {"kind": "kubernetes", "image": "fairlog", "server": url})
    for number in (1, 2, 3):
        provider.start(order(f"burst-{number}"))
    objects["pods/burst-1"]["metadata"] = {**objects["pods/burst-1"]["metadata"], "deletionTimestamp": "2026-11-27"}
    objects["pods/burst-2"]["status"] = {"phase": "Failed"}
    del objects["pods/burst-3"]
    assert provider.present() == {
        "burst-1": Instance(leaving=True),
        "burst-2": Instance(broken=True),
        "burst-3": Instance(broken=True),
    }


def test_in_a_pod_the_service_account_is_used_and_elsewhere_a_server_named(
    lock: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"kind": "kubernetes", "image": "fairlog"}
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ProviderFailed, match="start `kubectl proxy`"):
        made(lock, spec)
    ours = authority(tmp_path / "tls")
    (tmp_path / "ca.crt").write_bytes(ours.file.read_bytes())
    (tmp_path / "token").write_text("account-1\n")
    monkeypatch.setattr(providers, "_ACCOUNT", str(tmp_path))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*ours.issue("127.0.0.1"))
    fake = FakeKubernetes()
    with fake.served(tls) as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        provider = made(lock, spec)
        provider.start(order("burst-1"))
        (tmp_path / "token").write_text("account-2")
        assert provider.present() == {"burst-1": Instance()}
    assert {*fake.heard} == {"Bearer account-1", "Bearer account-2"}


def test_an_api_that_does_not_answer_is_told_of(lock: int) -> None:
    provider = made(lock, {"kind": "kubernetes", "image": "fairlog", "server": "http://127.0.0.1:1"})
    with pytest.raises(
        ProviderFailed, match=r"Kubernetes at http://127\.0\.0\.1:1/? does not answer GET pods: .*refused"
    ):
        provider.present()


def test_jobs_of_slurm_have_the_name_and_get_no_token_of_the_pool(
    stand_in: Callable[..., Path], lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stand_in(SLURM, "sbatch", "squeue", "scancel")
    monkeypatch.setenv("FAIRLOG_TOKEN", "the operator's")
    monkeypatch.setenv("FAIRLOG_LABELS", "zone=north")
    provider = made(lock, {"kind": "slurm", "options": ["--partition=spot"]}, resources={"gpu": 1})
    provider.start(order("burst-2"))
    words, script, seen = json.loads((folder / "burst-2").read_text())
    assert {"--dependency=singleton", "--cpus-per-task=4", "--mem=4352M", "--gres=gpu:1"} <= {*words}
    assert words[-1] == "--partition=spot"
    assert script.splitlines()[1:] == [
        "export FAIRLOG_API=http://api:8080",
        "export FAIRLOG_TOKEN=fl_1",
        "exec fairlog worker --id burst-2",
    ]
    assert "FAIRLOG_TOKEN" not in seen
    assert "FAIRLOG_LABELS" in seen
    assert provider.present() == {"burst-2": Instance()}
    provider.stop("burst-2")
    assert provider.present() == {}


def commands(script: str) -> dict[str, Any]:
    begin = ["sh", "-c", script, "sh"]
    return {
        "kind": "command",
        "timeout": 1,
        **{what: [*begin, what, "{worker}", "{cores}", "{memory}", "{other}"] for what in ("start", "stop", "list")},
    }


def test_commands_get_the_worker_and_what_it_offers(tmp_path: Path, lock: int) -> None:
    script = (
        f'echo "$@" "$FAIRLOG_WORKER_COMMAND" > {tmp_path}/said; test "$1" != list || echo "burst-1\nburst-2 leaving\n"'
    )
    provider = made(lock, commands(script))
    assert provider.present() == {"burst-1": Instance(), "burst-2": Instance(leaving=True)}
    provider.start(order("burst-3"))
    said = (tmp_path / "said").read_text()
    assert said == "start burst-3 4 4096 {other} fairlog worker --id burst-3\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo burst-1 is well", "printed 'burst-1 is well'; a line is NAME or NAME leaving"),
        ("echo no such zone >&2; exit 3", "ended with exit code 3: no such zone"),
        ("exit 4", "ended with exit code 4: it said nothing"),
        ("exec sleep 60", "it did not end within 1 s"),
    ],
)
def test_a_command_that_fails_is_told_of_in_its_words(lock: int, script: str, said: str) -> None:
    with pytest.raises(ProviderFailed) as refusal:
        made(lock, commands(script)).present()
    assert said in str(refusal.value)


def test_a_command_that_is_not_there_is_told_of(lock: int) -> None:
    missing = {**commands(""), "list": ["no-such-program"]}
    with pytest.raises(ProviderFailed, match="it cannot be run: No such file or directory"):
        made(lock, missing).present()
