"""Download over HTTPS: short waits, a few attempts, each going on where the last one stopped."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from spat.datasets._base import Report, Step
from spat.datasets._files import cannot_write, read_bytes
from spat.datasets._published import DAMAGE, UnavailableError

TIMEOUT = 5.0  # seconds without an answer; a host that cannot be reached must not hold up the next
ATTEMPTS = 4
PAUSE = 0.5  # seconds before the second attempt; doubled for each that follows
CHUNK = 1 << 18


class BrokenOffError(Exception):
    """A transfer that broke off; trying again may finish it."""


@dataclass(frozen=True)
class Https:
    """A host: `holds` maps its files to the data files in each; `unpack` takes them out by name."""

    base: str
    holds: Mapping[str, tuple[str, ...]]
    unpack: Callable[[str, bytes], Mapping[str, bytes]]
    pause: float = PAUSE
    name: str = "the official host"

    def deliver(
        self, wanted: Set[str], folder: Path, report: Report
    ) -> Iterator[tuple[str, bytes]]:
        """The wanted files with their names, as each arrives."""
        for remote, files in self.holds.items():
            if wanted.isdisjoint(files):
                continue
            data = self._download(remote, folder / f"{remote}.part", report)
            try:
                unpacked = self.unpack(remote, data)
            except DAMAGE as error:
                raise UnavailableError(f"{remote} is damaged ({error})") from error
            for file in files:
                if file not in unpacked:
                    raise UnavailableError(f"{remote} does not hold {file}")
                yield file, unpacked[file]

    def _download(self, remote: str, part: Path, report: Report) -> bytes:
        """The bytes of a remote file; what arrives is kept in `part` until it is whole."""
        for attempt in range(ATTEMPTS):
            try:
                _go_on(self.base + remote, part, report)
            except BrokenOffError as error:
                reason = error
                time.sleep(self.pause * 2**attempt)
                continue
            data = read_bytes(part)
            part.unlink()
            return data
        raise UnavailableError(f"{self.base}{remote} {reason} ({ATTEMPTS} attempts)")


def _go_on(url: str, part: Path, report: Report) -> None:
    """Ask for what `part` still lacks and append it."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "spat"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            _append(response, part, done, report)
    except urllib.error.HTTPError as error:
        error.close()
        _refused(url, error.code, part)
    except urllib.error.URLError as error:
        raise UnavailableError(f"cannot reach {url} ({error.reason})") from error
    except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        raise BrokenOffError(f"broke off ({error or type(error).__name__})") from error
    except OSError as error:
        raise cannot_write(part, error) from error


def _append(response: http.client.HTTPResponse, part: Path, done: int, report: Report) -> None:
    start, total = _extent(response)
    if start not in (0, done):
        part.unlink()
        raise BrokenOffError(f"answered from byte {start} when asked from byte {done}")
    with part.open("ab" if start else "wb") as file:
        got = start
        while chunk := response.read(CHUNK):
            file.write(chunk)
            got += len(chunk)
            report(Step(part.stem, got, total))
    if total is not None and got < total:
        raise BrokenOffError(f"broke off after {got:,} of {total:,} bytes")


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """The first byte of an answer, and the length of the whole file where the host tells it."""
    if response.status == http.client.PARTIAL_CONTENT:
        match = re.match(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if not match:
            raise BrokenOffError("answered with a part that it does not describe")
        return int(match[1]), int(match[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length else None


def _refused(url: str, status: int, part: Path) -> None:
    """Tell an answer that may change on the next attempt from one that will not."""
    if status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and part.exists():
        part.unlink()  # it is longer than the file: begin again
        raise BrokenOffError("has no bytes beyond those kept")
    if status >= 500 or status == http.client.TOO_MANY_REQUESTS:
        raise BrokenOffError(f"answers {status}")
    raise UnavailableError(f"{url} answers {status}")
