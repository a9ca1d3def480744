"""`deploy/systemd`: units that systemd takes as they are, and what the promises need of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from fairlog.cli.main import cli
from fairlog.cli.target import Target
from tests.waiting import HOPELESS_S
from workers.launch_helper import options

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
OURS = [unit for unit in UNITS if unit.stem not in {"fairlog-launch", "fairlog-store"}]


def _service(unit: Path) -> dict[str, str]:
    """The settings of the section [Service]; of one that stands there twice, the last."""
    section = unit.read_text().partition("[Service]\n")[2].partition("\n[")[0].replace("\\\n", "")
    lines = [line for line in section.splitlines() if line and not line.startswith("#")]
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def _verify(*units: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False, timeout=HOPELESS_S
    )


def test_there_is_a_unit_for_everything_that_runs() -> None:
    names = ["alerts", "api", "auditor", "launch", "master", "store", "worker"]
    assert [unit.stem for unit in UNITS] == [f"fairlog-{name}" for name in names]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_them_and_would_say_so(tmp_path: Path) -> None:
    checked = _verify(*UNITS)
    assert (checked.returncode, checked.stderr) == (0, "")
    wrong = tmp_path / "wrong.service"
    wrong.write_text(UNITS[0].read_text().replace("Type=notify", "Type=perhaps"))
    assert "perhaps" in _verify(wrong).stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_says_when_it_is_ready_and_is_started_again_whenever_it_ends(unit: Path) -> None:
    service = _service(unit)
    user = "root" if unit.stem == "fairlog-launch" else "fairlog"
    assert (service["Type"], service["Restart"], service["User"]) == ("notify", "always", user)
    assert "\nStartLimitIntervalSec=0\n" in unit.read_text(), "after five times in ten seconds systemd gives up"


@pytest.mark.parametrize("unit", OURS, ids=lambda unit: unit.stem)
def test_masters_and_workers_are_watched_and_run_a_verb_that_there_is(unit: Path) -> None:
    service = _service(unit)
    assert int(service["WatchdogSec"]) == (300 if unit.stem == "fairlog-alerts" else 30)
    line = service["ExecStart"].replace(" $FAIRLOG_WORKER_OPTIONS", " --cores 4 --drain")
    line = line.replace(" $FAIRLOG_ALERTS_OPTIONS", " --short 30m --ignore failover")
    words = line.replace(" $FAIRLOG_API_OPTIONS", " --listen 127.0.0.1:8080").split()
    assert words[:2] == ["/usr/bin/env", "fairlog"]
    verb = cli.get_command(click.Context(cli), words[2])
    assert verb is not None
    verb.make_context(words[2], words[3:], obj=Target())


@pytest.mark.parametrize("name", ["worker", "launch"])
def test_a_worker_that_stops_leaves_its_executors_and_their_cells_running(name: str) -> None:
    service = _service(FOLDER / f"fairlog-{name}.service")
    assert (service["KillMode"], service["Delegate"]) == ("process", "yes")
    assert "echo -cpu -memory -pids >" in service["ExecStopPost"], (
        "systemd starts nothing in a group that limits others"
    )


def test_the_helper_is_started_with_options_that_it_has_and_where_workers_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLOG_LAUNCH_SOCKET", raising=False)
    service = _service(FOLDER / "fairlog-launch.service")
    words = service["ExecStart"].split()
    assert words[:2] == ["/usr/bin/env", "fairlog-launch"]
    given = options().parse_args(words[2:])
    assert given.allow == [_service(FOLDER / "fairlog-worker.service")["User"]]
    assert given.socket.parent == Path("/run") / service["RuntimeDirectory"]
    assert given.state == Path("/var/lib") / service["StateDirectory"]


def test_the_store_syncs_every_write_evicts_nothing_and_listens_locally() -> None:
    started = _service(FOLDER / "fairlog-store.service")["ExecStart"]
    wanted = ("--supervised systemd", "--bind 127.0.0.1", "--appendonly yes", "--appendfsync always")
    for option in (*wanted, "--no-appendfsync-on-rewrite no", "--maxmemory-policy noeviction"):
        assert f" {option} " in started


def test_a_worker_has_no_store_but_a_token_from_a_credential() -> None:
    text = (FOLDER / "fairlog-worker.service").read_text()
    assert "STORE" not in text
    assert "\nEnvironment=FAIRLOG_API=http://127.0.0.1:8080 " in text
    assert "\nLoadCredential=invitation:/etc/fairlog/worker.invitation\n" in text
    assert "\nEnvironment=FAIRLOG_TOKEN_FILE=%d/invitation\n" in text


@pytest.mark.parametrize("unit", [unit for unit in OURS if "worker" not in unit.stem], ids=lambda unit: unit.stem)
def test_each_has_a_user_of_the_store_and_its_password_from_a_credential(unit: Path) -> None:
    text, user = unit.read_text(), unit.stem.replace("alerts", "auditor")
    assert f"FAIRLOG_STORE=redis://{user}@127.0.0.1:6379/0" in text
    assert f"\nLoadCredential=store-password:/etc/fairlog/passwords/{user}\n" in text
    assert "\nEnvironment=FAIRLOG_STORE_PASSWORD_FILE=%d/store-password\n" in text


@pytest.mark.parametrize("unit", OURS, ids=lambda unit: unit.stem)
def test_each_reads_a_file_of_its_own_last_as_the_stores_url_names_its_user(unit: Path) -> None:
    files = [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith("EnvironmentFile=")]
    own = f"-/etc/fairlog/{unit.stem.removeprefix('fairlog-')}.env"
    assert files == ([own] if "worker" in unit.stem else ["-/etc/fairlog/fairlog.env", own])


def test_the_store_answers_only_the_users_of_its_acl_file() -> None:
    text = (FOLDER / "fairlog-store.service").read_text()
    assert "\nLoadCredential=users.acl:/etc/fairlog/users.acl\n" in text
    assert " --aclfile %d/users.acl" in _service(FOLDER / "fairlog-store.service")["ExecStart"]
    assert "protected-mode" not in text


CLOSED = {
    "CapabilityBoundingSet": "",
    "LockPersonality": "yes",
    "NoNewPrivileges": "yes",
    "PrivateDevices": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "SystemCallArchitectures": "native",
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_may_do_what_it_does_and_little_else(unit: Path) -> None:
    service, text = _service(unit), unit.read_text()
    if unit.stem in {"fairlog-worker", "fairlog-launch"}:
        assert "\nSystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap\n" in text
        assert {service[name] for name in ("LockPersonality", "NoNewPrivileges", "RestrictRealtime")} == {"yes"}
        assert service["RestrictAddressFamilies"] == "AF_INET AF_INET6 AF_UNIX AF_NETLINK"
        return
    assert {name: service.get(name) for name in CLOSED} == CLOSED
    assert "\nSystemCallFilter=@system-service\nSystemCallFilter=~@privileged\n" in text


def test_a_worker_has_no_capability_and_nothing_that_covers_proc() -> None:
    service = _service(FOLDER / "fairlog-worker.service")
    assert service["CapabilityBoundingSet"] == ""
    covers = ("ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProtectHostname", "ProtectControlGroups")
    assert not set(service) & {*covers, "RestrictNamespaces", "PrivateDevices", "ProtectClock"}


def test_the_root_helper_makes_no_namespace_of_users() -> None:
    assert _service(FOLDER / "fairlog-launch.service")["RestrictNamespaces"] == "cgroup ipc mnt net pid uts"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_little_exposed(unit: Path) -> None:
    most = 65 if unit.stem in {"fairlog-worker", "fairlog-launch"} else 20
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={most}", str(unit)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=HOPELESS_S).returncode == 0
