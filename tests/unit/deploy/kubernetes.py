"""`deploy/kubernetes` as tests read it, and what its page has people type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def documents() -> list[dict[str, Any]]:
    """Every object of the base."""
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [each for file in named for each in yaml.safe_load_all((FOLDER / file).read_text())]


DOCUMENTS = documents()
WORKLOADS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in DOCUMENTS
    if each["kind"] in {"Deployment", "StatefulSet"}
}
"""Name -> the pod of each workload."""


def typed() -> Iterator[list[str]]:
    """The commands that the page shows, in order, each in words; several on a line are apart."""
    for block in re.findall(r"```console[^\n]*\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            assert line.startswith("$ "), line
            for command in line.removeprefix("$ ").removesuffix(" &").split(" && "):
                yield shlex.split(command)


def secrets() -> dict[str, list[str]]:
    """The secrets that the page makes, with the files of each."""
    made = [words for words in typed() if "secret" in words]
    return {
        words[words.index("generic") + 1]: [Path(word).name for word in words if word.startswith("--from-file=")]
        for words in made
    }


def mounts(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Path -> the volume that a container sees there."""
    volumes = {each["name"]: each for each in pod.get("volumes", [])}
    return {each["mountPath"]: volumes.get(each["name"], {"name": each["name"]}) for each in container["volumeMounts"]}


def variables(container: dict[str, Any]) -> dict[str, str]:
    """The environment of a container."""
    return {each["name"]: each["value"] for each in container.get("env", [])}
