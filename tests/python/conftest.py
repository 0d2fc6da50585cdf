"""Fixtures: the headrace command under test, and where the real checkpoints of tools/models.txt lie."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADRACE = Path(os.environ.get("HEADRACE_BIN", ROOT / "build" / "headrace")).resolve()


class Command:
    """Runs the headrace command. `limits` is shell text that is run before it, as `ulimit -n 256`."""

    def run(self, *arguments: object, limits: str = ":") -> subprocess.CompletedProcess:
        command = ["sh", "-c", f'{limits}; exec "$@"', "sh", HEADRACE, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def json(self, *arguments: object, limits: str = ":") -> object:
        result = self.run(*arguments, "--json", limits=limits)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout)

    def hashes(self, *arguments: object, limits: str = ":") -> dict[str, str]:
        """Name -> XXH3-128 of the bytes in memory, as `headrace hash` gives them."""
        return {tensor["name"]: tensor["hash"] for tensor in self.json("hash", *arguments, limits=limits)["tensors"]}


@pytest.fixture(scope="module")
def headrace() -> Command:
    return Command()


@pytest.fixture(scope="module")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder of the build: the command and the library."""
    return HEADRACE.parent


@pytest.fixture(scope="module")
def models() -> Path:
    folder = ROOT / ".demo"
    assert (folder / "stamp").exists(), "run `make .demo/stamp`, which fetches the real checkpoints"
    return folder
