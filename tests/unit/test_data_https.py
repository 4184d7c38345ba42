"""Downloads against a server on this machine that misbehaves in every way it can."""

import gzip
import http.server
import io
import tarfile
import threading

import pytest

from spat.datasets import _https
from spat.datasets._files import md5
from spat.datasets._https import Https
from spat.datasets._published import Published, as_it_is, gunzip, tar_members
from spat.errors import UserError

CONTENT = bytes(range(256)) * 2000
PACKED = gzip.compress(CONTENT, mtime=0)
BREAK = len(PACKED) // 2


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next entry of the script, and the last for ever."""

    def do_GET(self):
        script = self.server.script
        self.server.asked.append((self.path, self.headers.get("Range")))
        (script.pop(0) if len(script) > 1 else script[0])(self)

    def log_message(self, *_):
        """Quiet."""

    def send(self, body, status=200, *, length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def whole(handler):
    handler.send(PACKED)


def rest(handler):
    """What a proper server does with a range."""
    start = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    if start >= len(PACKED):
        handler.send(b"", 416)
        return
    extent = f"bytes {start}-{len(PACKED) - 1}/{len(PACKED)}"
    handler.send(PACKED[start:], 206, Content_Range=extent)


def half(handler):
    handler.send(PACKED[:BREAK], length=len(PACKED))


def answers(status):
    return lambda handler: handler.send(b"", status)


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked, running.script = [], [whole]
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def fetch(server, tmp_path):
    """Fetch the one file of a little data set with a script of answers; steps are kept."""
    little = Published(
        "Little", "little", ("little",), {"file": md5(CONTENT)}, {"{file}": as_it_is}
    )

    def go(*script, unpack=lambda remote, data: {remote.removesuffix(".gz"): gunzip(data)}):
        server.script = list(script)
        base = f"http://127.0.0.1:{server.server_port}/"
        go.steps = []
        source = Https(base, {"file.gz": ("file",)}, unpack, pause=0.001)
        return little.fetch(tmp_path, [source], go.steps.append) / "file"

    go.folder = tmp_path / "little"
    return go


def kept(fetch):
    return sorted(path.name for path in fetch.folder.iterdir())


def test_a_download(fetch, server):
    path = fetch(whole)
    assert path.read_bytes() == CONTENT
    assert kept(fetch) == ["file"]
    assert server.asked == [("/file.gz", None)]
    bars = [(step.text, step.done, step.total) for step in fetch.steps if step.done is not None]
    assert bars[-1] == ("file.gz", len(PACKED), len(PACKED))


def test_a_present_file_is_not_asked_for(fetch, server):
    fetch(whole)
    fetch(whole)
    assert len(server.asked) == 1


def test_a_truncated_transfer_goes_on_where_it_stopped(fetch, server):
    assert fetch(half, rest).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, f"bytes={BREAK}-"]
    assert kept(fetch) == ["file"]


def test_a_part_of_an_earlier_run_is_resumed(fetch, server):
    fetch.folder.mkdir()
    (fetch.folder / "file.gz.part").write_bytes(PACKED[:100])
    assert fetch(rest).read_bytes() == CONTENT
    assert server.asked == [("/file.gz", "bytes=100-")]
    assert kept(fetch) == ["file"]


def test_a_truncated_rest_goes_on_too(fetch, server):
    def some(handler):
        extent = f"bytes {BREAK}-{len(PACKED) - 1}/{len(PACKED)}"
        part = PACKED[BREAK : BREAK + 50]
        handler.send(part, 206, length=len(PACKED) - BREAK, Content_Range=extent)

    assert fetch(half, some, rest).read_bytes() == CONTENT
    assert server.asked[2][1] == f"bytes={BREAK + 50}-"


def test_a_server_that_ignores_ranges(fetch, server):
    assert fetch(half, whole).read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_part_that_is_too_long_is_thrown_away(fetch, server):
    fetch.folder.mkdir()
    (fetch.folder / "file.gz.part").write_bytes(PACKED + b"more")
    assert fetch(rest, whole).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [f"bytes={len(PACKED) + 4}-", None]


def test_the_wrong_part_is_thrown_away(fetch, server):
    def elsewhere(handler):
        handler.send(PACKED[7:], 206, Content_Range=f"bytes 7-{len(PACKED) - 1}/{len(PACKED)}")

    assert fetch(half, elsewhere, whole).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, f"bytes={BREAK}-", None]


def test_a_part_without_its_extent_is_not_trusted(fetch, server):
    def vague(handler):
        handler.send(PACKED[BREAK:], 206)

    assert fetch(half, vague, rest).read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_for_ever_truncated(fetch, server):
    with pytest.raises(UserError, match=r"broke off after [\d,]+ of [\d,]+ bytes \(4 attempts\)"):
        fetch(half)
    assert len(server.asked) == _https.ATTEMPTS
    assert kept(fetch) == ["file.gz.part"]  # the next run goes on from here


def test_a_server_in_trouble_is_asked_again(fetch, server):
    assert fetch(answers(503), answers(429), whole).read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_not_found_is_final(fetch, server):
    with pytest.raises(UserError, match=r"Little could not be fetched \(the official host: .*404"):
        fetch(answers(404))
    assert len(server.asked) == 1
    assert kept(fetch) == []


def test_a_wrong_checksum_leaves_nothing(fetch):
    wrong = gzip.compress(b"something else", mtime=0)
    expected = rf"file has MD5 {md5(b'something else')}, expected {md5(CONTENT)}"
    with pytest.raises(UserError, match=expected):
        fetch(lambda handler: handler.send(wrong))
    assert kept(fetch) == []


@pytest.mark.parametrize("body", [b"<html>please log in</html>", PACKED[:-9]])
def test_what_does_not_unpack_leaves_nothing(fetch, body):
    with pytest.raises(UserError, match=r"file.gz is damaged \("):
        fetch(lambda handler: handler.send(body))
    assert kept(fetch) == []


def test_an_archive_without_the_file(fetch):
    with pytest.raises(UserError, match=r"file\.gz does not hold file"):
        fetch(whole, unpack=lambda remote, data: {"other": data})


def test_an_unreachable_host_fails_at_once(tmp_path):
    source = Https("http://127.0.0.1:9/", {"file.gz": ("file",)}, lambda remote, data: {}, 60.0)
    little = Published(
        "Little", "little", ("little",), {"file": md5(CONTENT)}, {"{file}": as_it_is}
    )
    with pytest.raises(UserError, match=r"cannot reach http://127.0.0.1:9/file.gz \(.*refused"):
        little.fetch(tmp_path, [source], lambda step: None)


def test_a_silent_host_is_given_up(fetch, server, monkeypatch):
    monkeypatch.setattr(_https, "TIMEOUT", 0.05)
    wake = threading.Event()

    def silent(handler):
        wake.wait(2)

    with pytest.raises(UserError, match=r"broke off \(timed out\) \(4 attempts\)"):
        fetch(silent)
    wake.set()


def test_no_write_permission(fetch):
    fetch.folder.mkdir()
    (fetch.folder / "file.gz.part").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*file.gz.part: Is a directory; pass root"):
        fetch(whole, whole)


def test_members_of_an_archive_are_read_by_name_and_never_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("folder/a.bin", "../../b.bin", "/etc/c.bin"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            archive.addfile(entry, io.BytesIO(name[-5:-2].encode()))
        link = tarfile.TarInfo("d.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    members = tar_members(buffer.getvalue())
    assert members == {"a.bin": b"a.b", "b.bin": b"b.b", "c.bin": b"c.b"}
    assert list(tmp_path.iterdir()) == []
