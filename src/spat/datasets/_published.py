"""A published data set: its files, their checksums, the forms in which a folder may hold them."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from spat.datasets._base import Report, Step
from spat.datasets._files import make_folder, md5, read_bytes, write_whole
from spat.errors import UserError

T = TypeVar("T")
Decoder = Callable[[bytes], bytes]
# What unpacking damaged data raises; gzip's own error is an OSError.
DAMAGE = (ValueError, EOFError, OSError, tarfile.TarError, zlib.error, SyntaxError)


class UnavailableError(Exception):
    """A source cannot deliver; the next one may."""


class Source(Protocol):
    """A place outside this machine that has the files."""

    @property
    def name(self) -> str: ...

    def deliver(
        self, wanted: Set[str], folder: Path, report: Report
    ) -> Iterator[tuple[str, bytes]]:
        """The wanted files with their names, unverified; may raise UnavailableError."""
        ...


@dataclass(frozen=True)
class Published:
    """`folders` are looked through in order, and a fetch writes to the first.

    `files` maps each file to its MD5; `forms` maps the name that a file may have in a folder,
    with {file} or {stem} for its own, to the decoder of its bytes.
    """

    title: str
    name: str
    folders: tuple[str, ...]
    files: Mapping[str, str]
    forms: Mapping[str, Decoder]

    def load(self, root: Path, file: str, decode: Callable[[bytes], T]) -> T:
        """A decoded file; the decoder sees it first, as it can tell what is wrong with it."""
        data = self._read(root, file)
        if data is None:
            raise UserError(
                f"{self.title} is not in {root} ({file} is missing); "
                f"run `spat data fetch {self.name}` or pass root=..."
            )
        decoded = decode(data)
        if md5(data) != self.files[file]:
            raise UserError(
                f"{file} in {root} {self._mismatch(file, data)}; "
                f"run `spat data fetch {self.name}` to replace it."
            )
        return decoded

    def verify(self, root: Path) -> list[tuple[str, str]]:
        """Each file with `ok`, `missing` or what is wrong with it."""
        return [(file, self._status(root, file)) for file in self.files]

    def fetch(self, root: Path, sources: Sequence[Source], report: Report) -> Path:
        """Make every file present and verified; the folder that holds what was fetched."""
        folder = root / self.folders[0]
        reasons = []
        for source in sources:
            lacking = self._lacking(root)
            if not lacking:
                break
            try:
                self._take(source, lacking, folder, report)
            except UnavailableError as error:
                reasons.append(f"{source.name}: {error}")
                report(Step(f"{self.title} did not come from {source.name}: {error}."))
        lacking = self._lacking(root)
        if lacking:
            tried = "; ".join(reasons) or "no source was given"
            raise UserError(
                f"{self.title} could not be fetched ({tried}); "
                f"put {', '.join(sorted(lacking))} into {folder} yourself."
            )
        for part in folder.glob("*.part"):
            part.unlink()  # of a source that broke off before another delivered
        report(Step(f"{self.title} is in {root}, verified."))
        return folder

    def _take(self, source: Source, lacking: Set[str], folder: Path, report: Report) -> None:
        make_folder(folder)
        for file, data in source.deliver(lacking, folder, report):
            if md5(data) != self.files[file]:
                raise UnavailableError(f"{file} {self._mismatch(file, data)}")
            write_whole(folder / file, data)

    def _lacking(self, root: Path) -> set[str]:
        return {file for file, status in self.verify(root) if status != "ok"}

    def _status(self, root: Path, file: str) -> str:
        try:
            data = self._read(root, file)
        except UserError as error:
            return str(error)
        if data is None:
            return "missing"
        return "ok" if md5(data) == self.files[file] else self._mismatch(file, data)

    def _mismatch(self, file: str, data: bytes) -> str:
        return f"has MD5 {md5(data)}, expected {self.files[file]}"

    def _read(self, root: Path, file: str) -> bytes | None:
        """The bytes of a file in whichever form the folders have it; None if in none."""
        for folder in self.folders:
            for form, decoder in self.forms.items():
                path = root / folder / form.format(file=file, stem=Path(file).stem)
                if path.is_file():
                    return _decoded(path, decoder)
        return None


def _decoded(path: Path, decoder: Decoder) -> bytes:
    data = read_bytes(path)
    try:
        return decoder(data)
    except DAMAGE as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def as_it_is(data: bytes) -> bytes:
    return data


def gunzip(data: bytes) -> bytes:
    return gzip.decompress(data)


def tar_members(data: bytes) -> dict[str, bytes]:
    """The files of a gzipped tar by their last name, in memory: no path of its is ever followed."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        opened = ((member, archive.extractfile(member)) for member in archive if member.isfile())
        return {Path(member.name).name: file.read() for member, file in opened if file}
