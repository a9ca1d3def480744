"""`compose.yaml`: valid by the Compose specification, and what the promises need of it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TypedDict, cast

import pytest
import yaml

from scheduler.service.addresses import TOKEN_FILE_VARIABLE, URL_VARIABLE
from scheduler.service.keyring import KEYS_VARIABLE
from scheduler.store.acl import ROLES
from scheduler.store.connection import PASSWORD_FILE
from scheduler.store.known_holes import known_holes

ROOT = Path(__file__).parents[3]


class _Healthcheck(TypedDict):
    test: list[str]


class _Condition(TypedDict):
    condition: str


class _Service(TypedDict, total=False):
    command: list[str]
    healthcheck: _Healthcheck
    restart: str
    volumes: list[str]
    depends_on: dict[str, _Condition]
    environment: dict[str, str]
    image: str
    secrets: list[str]


class _Compose(TypedDict):
    services: dict[str, _Service]
    volumes: dict[str, None]


@pytest.fixture(scope="module")
def compose() -> _Compose:
    return cast("_Compose", yaml.safe_load((ROOT / "compose.yaml").read_text()))


def _check(file: Path) -> subprocess.CompletedProcess[str]:
    """Hold `file` against the Compose specification's schema, which `check-jsonschema` carries: no network is asked."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_compose_file_is_valid_by_the_compose_specifications_schema() -> None:
    checked = _check(ROOT / "compose.yaml")
    assert checked.returncode == 0, checked.stdout


def test_the_schema_refuses_what_the_specification_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text().replace("condition: service_healthy", "condition: perhaps"))
    checked = _check(wrong)
    assert checked.returncode == 1
    assert "perhaps" in checked.stdout


def test_it_runs_a_store_two_masters_an_api_an_auditor_and_three_workers(compose: _Compose) -> None:
    verbs = [service["command"][0] for service in compose["services"].values()]
    assert sorted(verbs) == ["api", "audit"] + ["master"] * 2 + ["valkey-server"] + ["worker"] * 3


def test_every_service_is_health_checked_and_started_again(compose: _Compose) -> None:
    for name, service in compose["services"].items():
        assert service["healthcheck"]["test"], name
        assert service["restart"] == "unless-stopped", name


def test_masters_and_workers_are_healthy_while_they_are_alive(compose: _Compose) -> None:
    for name, service in compose["services"].items():
        if name not in {"store", "api", "auditor"}:
            assert service["healthcheck"]["test"] == ["CMD", "fairlog", "status", "--live"], name


def test_the_store_forces_every_write_to_disk_and_evicts_nothing(compose: _Compose) -> None:
    arguments = compose["services"]["store"]["command"][1:]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--no-appendfsync-on-rewrite"] == "no"
    assert options["--maxmemory-policy"] == "noeviction"


def test_the_stores_data_lies_on_a_volume_and_each_workers_on_its_own(compose: _Compose) -> None:
    mounted = [volume for service in compose["services"].values() for volume in service.get("volumes", [])]
    names = [volume.split(":")[0] for volume in mounted]
    assert sorted(names) == sorted(compose["volumes"])
    assert "store:/data" in mounted


def test_masters_and_api_wait_for_a_store_that_answers_and_use_it(compose: _Compose) -> None:
    for name, service in compose["services"].items():
        if name != "store" and service["command"][0] != "worker":
            assert service["depends_on"]["store"]["condition"] == "service_healthy", name
            assert service["environment"]["FAIRLOG_STORE"].endswith("@store:6379/0"), name


def test_everybody_has_a_password_of_its_own_and_the_store_knows_nobody_else(compose: _Compose) -> None:
    text = (ROOT / "compose.yaml").read_text()
    assert "--protected-mode" not in text
    assert "/run/secrets/users.acl" in compose["services"]["store"]["command"]
    users = {role.user for role in ROLES}
    for name, service in compose["services"].items():
        assert "ports" not in service
        if name != "store" and service["command"][0] != "worker":
            user = service["environment"]["FAIRLOG_STORE"].partition("://")[2].partition("@")[0]
            assert user in users, name
            assert user == f"fairlog-{service['command'][0].replace('audit', 'auditor')}"
            assert service["environment"][PASSWORD_FILE] == f"/run/secrets/{user}"
            assert service["secrets"][0] == user
            keys = {"fairlog-master": ["keys.json"], "fairlog-api": ["door-keys.json"]}.get(user, [])
            assert service["secrets"][1:] == keys
            assert service["environment"].get(KEYS_VARIABLE) == (f"/run/secrets/{keys[0]}" if keys else None)


def test_workers_reach_the_api_alone_each_with_its_own_token(compose: _Compose) -> None:
    workers = [name for name, service in compose["services"].items() if service["command"][0] == "worker"]
    for name in workers:
        service = compose["services"][name]
        assert service["secrets"] == [name]
        assert service["environment"] == {URL_VARIABLE: "http://api:8080", TOKEN_FILE_VARIABLE: f"/run/secrets/{name}"}
        assert service["depends_on"] == {"api": {"condition": "service_healthy"}}


def test_images_are_pinned_by_version_and_digest(compose: _Compose) -> None:
    image = compose["services"]["store"]["image"]
    assert re.fullmatch(r"valkey/valkey:\d+\.\d+\.\d+-alpine@sha256:[0-9a-f]{64}", image)
    assert known_holes("valkey", image.partition(":")[2].partition("-")[0]) == ""
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${PYTHON_IMAGE}"}


@pytest.mark.parametrize(
    ("file", "further"),
    [("requirements.lock", ("fsspec", "zstandard")), ("requirements-build.lock", ("hatchling", "mypy", "setuptools"))],
)
def test_a_lock_file_names_every_dependency_with_hashes(file: str, further: tuple[str, ...]) -> None:
    locked = _locked(file)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for each in (*dependencies, *further):
        name = re.split(r"[\[<>=;]", each)[0].strip().lower()
        assert name in locked, f"{name} is not locked; run `make lock`"
    assert (ROOT / file).read_text().count("==") >= len(locked)


def test_what_the_image_is_built_with_has_the_versions_of_what_it_runs_with() -> None:
    runs, builds = _locked("requirements.lock"), _locked("requirements-build.lock")
    assert {name: version for name, version in builds.items() if runs.get(name, version) != version} == {}


def _locked(file: str) -> dict[str, str]:
    """Version by package, of those that have a hash."""
    text = (ROOT / file).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+).*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
