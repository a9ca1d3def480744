"""What `make` prints while it installs: a sentence, and what pip prints only if it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = '#!/bin/sh\necho "Collecting a page"\necho "why it failed" >&2\nexit {code}\n'


def made(folder: Path, target: str, code: int) -> subprocess.CompletedProcess[str]:
    """What `make TARGET` says in a folder whose pip exits with the code."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP.format(code=code))
    python.chmod(0o755)
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        ["make", f".venv/{target}"], cwd=folder, env=alone, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", [".run", ".test", ".dev"])
class TestInstalling:
    def test_is_one_sentence(self, tmp_path: Path, target: str) -> None:
        done = made(tmp_path, target, 0)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1
        assert done.stdout.startswith("Installing fairlog and what ")
        assert (tmp_path / ".venv" / target).exists()

    def test_that_fails_shows_what_pip_said(self, tmp_path: Path, target: str) -> None:
        done = made(tmp_path, target, 1)
        assert done.returncode != 0
        assert "Collecting a page\nwhy it failed\n" in done.stderr
        assert not (tmp_path / ".venv" / target).exists()
