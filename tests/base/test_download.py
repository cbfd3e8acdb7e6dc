"""Downloads, from a server on this machine: complete and right, or not at all."""

from __future__ import annotations

import email.message
import hashlib
import io
import json
import logging
import os
import threading
import urllib.request
import urllib.response
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fastntk.base.download import cache_folder, download
from fastntk.base.errors import InputError
from fastntk.base.progress import show_progress

CONTENT = bytes(range(256)) * 3000  # three chunks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    content = CONTENT

    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path == "/absent.bin":
            self.send_error(404)
            return
        if self.path == "/moved.bin":
            self.send_response(302)
            self.send_header("Location", self.server.moved)
            self.end_headers()
            return
        self.send_response(200)
        if self.path != "/unknown-length.bin":
            self.send_header("Content-Length", self.server.length or str(len(self.server.content)))
        self.end_headers()
        cut = self.path == "/cut.bin"
        self.wfile.write(self.server.content[: len(self.server.content) // 2] if cut else self.server.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.requests, running.length = CONTENT, [], None
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("hashes", [{"sha256": SHA256}, {"md5": MD5}, {"sha256": SHA256.upper(), "md5": MD5}])
@pytest.mark.parametrize("name", ["file.bin", "unknown-length.bin"])
def test_a_right_hash_is_kept_and_not_fetched_again(server, tmp_path, hashes, name):
    for _ in range(2):
        path = download(f"{server.url}/{name}", folder=tmp_path / "new", **hashes)
        assert path.read_bytes() == CONTENT
    assert files(tmp_path / "new") == [name]
    assert len(server.requests) == 1


def test_bars_do_not_change_the_file(server, tmp_path):
    with show_progress():
        assert download(f"{server.url}/file.bin", folder=tmp_path, sha256=SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize("hashes", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"sha256": SHA256, "md5": "0" * 32}])
def test_a_wrong_hash_is_refused_and_leaves_nothing(server, tmp_path, hashes):
    with pytest.raises(InputError, match=r"has (sha256|md5) \w+, expected 0+: it is damaged or not the file"):
        download(f"{server.url}/file.bin", folder=tmp_path, **hashes)
    assert files(tmp_path) == []


def test_an_interrupted_download_leaves_nothing(server, tmp_path):
    with pytest.raises(InputError, match=f"broke off after {len(CONTENT) // 2} of {len(CONTENT)} bytes"):
        download(f"{server.url}/cut.bin", folder=tmp_path)
    assert files(tmp_path) == []


def test_a_missing_file_says_where_to_put_it_by_hand(server, tmp_path):
    with pytest.raises(InputError, match=r"could not download .*absent.bin: Not Found; .*put it at .*absent.bin"):
        download(f"{server.url}/absent.bin", folder=tmp_path)
    assert files(tmp_path) == []


def test_no_server_at_all(tmp_path):
    with pytest.raises(InputError, match="could not download"):
        download("http://127.0.0.1:9/file.bin", folder=tmp_path)


def test_an_unknown_hash_is_recorded_said_and_held_to(server, tmp_path, caplog):
    url = f"{server.url}/file.bin"
    with caplog.at_level(logging.WARNING):
        path = download(url, folder=tmp_path)
    assert "no hash is published" in caplog.text
    assert SHA256 in caplog.text
    record = tmp_path / "file.bin.sha256.json"
    assert json.loads(record.read_text())["sha256"] == SHA256
    caplog.clear()
    assert download(url, folder=tmp_path) == path
    assert caplog.text == ""

    path.write_bytes(CONTENT[:-1] + b"x")  # edited on disk
    with pytest.raises(InputError, match=f"expected {SHA256}"):
        download(url, folder=tmp_path)

    path.unlink()
    server.content = b"another file"  # changed at its home
    with pytest.raises(InputError, match=f"expected {SHA256}"):
        download(url, folder=tmp_path)
    assert files(tmp_path) == ["file.bin.sha256.json"]

    record.write_text("{")
    with pytest.raises(InputError, match=r"cannot be read.*delete both"):
        download(url, folder=tmp_path)


def test_a_damaged_cached_file_is_refused(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"damaged")
    with pytest.raises(InputError, match="Delete"):
        download(f"{server.url}/file.bin", folder=tmp_path, sha256=SHA256)
    assert server.requests == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "https://host/", "http:///x", "x.bin"])
def test_addresses_that_are_none(url, tmp_path):
    with pytest.raises(InputError, match="expected an http"):
        download(url, folder=tmp_path)


def test_the_cache_folder_follows_the_environment(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTNTK_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    assert download(f"{server.url}/file.bin", sha256=SHA256) == tmp_path / "cache" / "file.bin"
    monkeypatch.delenv("FASTNTK_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "fastntk"


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="set FASTNTK_CACHE"):
        download(f"{server.url}/file.bin", folder=tmp_path / "file" / "sub")


@pytest.mark.parametrize("name", ["file.bin", "unknown-length.bin"])
def test_more_than_was_said_is_refused_and_leaves_nothing(server, tmp_path, name):
    with pytest.raises(InputError, match=r"(has 768 kB, more than|sends more than) the 300 kB that are taken; .*put it at"):
        download(f"{server.url}/{name}", folder=tmp_path, sha256=SHA256, most=300_000)
    assert files(tmp_path) == []
    assert download(f"{server.url}/{name}", folder=tmp_path, sha256=SHA256, most=len(CONTENT)).read_bytes() == CONTENT


def test_a_length_that_is_no_number(server, tmp_path):
    server.length = "many"
    assert download(f"{server.url}/file.bin", folder=tmp_path, sha256=SHA256).read_bytes() == CONTENT


def test_redirects_are_followed_but_not_from_https_to_http(server, tmp_path, monkeypatch):
    server.moved = f"{server.url}/file.bin"
    assert download(f"{server.url}/moved.bin", folder=tmp_path, sha256=SHA256).read_bytes() == CONTENT
    server.moved = "ftp://127.0.0.1:9/file.bin"
    with pytest.raises(InputError, match=r"redirects to ftp://.*, which is not https"):
        download(f"{server.url}/moved.bin", folder=tmp_path / "other", sha256=SHA256)

    def https(handler, request):
        headers = email.message.Message()
        headers["Location"] = f"{server.url}/file.bin"
        response = urllib.response.addinfourl(io.BytesIO(), headers, request.full_url, 302)
        response.msg = "Found"
        return response

    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", https)
    server.requests.clear()
    with pytest.raises(InputError, match=r"https://host/new\.bin: it redirects to http://127.*, which is not https"):
        download("https://host/new.bin", folder=tmp_path / "third", sha256=SHA256)
    assert server.requests == []
    assert files(tmp_path / "third") == []


def test_a_pipe_in_the_cache_is_not_waited_for(server, tmp_path):
    os.mkfifo(tmp_path / "file.bin")
    with pytest.raises(InputError, match="is a pipe, not a regular file"):
        download(f"{server.url}/file.bin", folder=tmp_path, sha256=SHA256)
