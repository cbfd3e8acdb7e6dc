"""Fetch a public file once, check it, and keep it in a cache folder.

A file appears in the cache only when it is complete and its hash is right: it is written beside its place and moved
there at the end. Where the publisher gives no hash, the SHA-256 of the first download is written to
``<file>.sha256.json`` and said; whatever differs from it later is refused. No hash is ever made up.
Not for Hugging Face models and datasets, which their own libraries fetch and cache.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fastntk.base.digest import file_digest
from fastntk.base.errors import InputError
from fastntk.base.files import regular_file
from fastntk.base.progress import track
from fastntk.base.text import byte_size

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "FASTNTK_CACHE"
MOST_BYTES = 1 << 30
"""Of a download, where nobody says; what the package fetches has 0.2 GB at most."""
_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60.0


def cache_folder() -> Path:
    """Where downloads are kept: ``$FASTNTK_CACHE``, else ``~/.cache/fastntk``."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "fastntk"


def download(
    url: str, *, sha256: str | None = None, md5: str | None = None, folder: str | Path | None = None, most: int = MOST_BYTES
) -> Path:
    """Return the checked local copy of a public file, fetching it if need be.

    The cached copy is checked again on every call. A wrong hash, a broken connection or a cut-off transfer raises
    ``InputError`` and leaves no file behind; so does a file of more than ``most`` bytes.
    """
    target = _target(url, folder=Path(folder) if folder is not None else cache_folder())
    if target.exists():
        regular_file(target, expected=f"the file from {url}")
        _check(target, url=url, sha256=sha256, md5=md5, name=target)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial_name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InputError(
            f"cannot write to the download folder {target.parent} ({error}): set {CACHE_VARIABLE} to one that can be written"
        ) from error
    partial = Path(partial_name)
    try:
        with os.fdopen(handle, "wb") as stream:
            for chunk in _fetch(url, target=target, most=most):
                stream.write(chunk)
        _check(partial, url=url, sha256=sha256, md5=md5, name=target)
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _target(url: str, *, folder: Path) -> Path:
    parts = urlsplit(url)
    name = unquote(parts.path.rpartition("/")[2])
    if parts.scheme not in ("http", "https") or not parts.netloc or name in ("", ".", "..") or "/" in name:
        raise InputError(f"cannot download {url!r}: expected an http(s) address that ends in a file name")
    return folder / name


def _fetch(url: str, *, target: Path, most: int) -> Iterator[bytes]:
    """Yield the file's bytes; a transfer that ends early is an error, never a short file."""
    advice = f"check the connection, or fetch it by other means and put it at {target}"
    request = urllib.request.Request(url, headers={"User-Agent": "fastntk"})
    byte_count = 0
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT_SECONDS) as response:
            expected: int | None = response.length  # None where the header is absent or no number
            if expected is not None and expected > most:
                raise InputError(f"{url} has {byte_size(expected)}, more than the {byte_size(most)} that are taken; {advice}")
            chunks = None if expected is None else -(-expected // _CHUNK)
            for chunk in track(iter(lambda: response.read(_CHUNK), b""), f"downloading {target.name}", total=chunks):
                byte_count += len(chunk)
                if byte_count > most:
                    raise InputError(f"{url} sends more than the {byte_size(most)} that are taken; {advice}")
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"could not download {url}: {getattr(error, 'reason', error)}; {advice}") from error
    # http.client returns a short read without complaint when the other side hangs up.
    if expected is not None and byte_count != expected:
        raise InputError(f"the download of {url} broke off after {byte_count} of {expected} bytes; {advice}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects from http(s) to http(s), but never from https to http, where anybody on the way could change the file."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after not in ("http", "https") or (before == "https" and after != "https"):
            raise InputError(
                f"could not download {req.full_url}: it redirects to {newurl}, which is not https; get it by other means"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check(file: Path, *, url: str, sha256: str | None, md5: str | None, name: Path) -> None:
    record = name.with_name(name.name + ".sha256.json")
    if sha256 is None and md5 is None and not record.exists():
        digest = file_digest(file)
        entry = {"url": url, "sha256": digest, "bytes": file.stat().st_size, "known_from": "first download"}
        _write_record(record, entry)
        logger.warning(
            "no hash is published for %s: recorded the SHA-256 of this copy, %s, in %s; later copies must match",
            url,
            digest,
            record,
        )
        return
    if sha256 is None and md5 is None:
        sha256 = _recorded(record)
    for algorithm, expected in (("sha256", sha256), ("md5", md5)):
        if expected is None:
            continue
        digest = file_digest(file, algorithm=algorithm)
        if digest != expected.lower():
            raise InputError(
                f"{name} from {url} has {algorithm} {digest}, expected {expected}: it is damaged or not the file that "
                f"was published, and is not used. Delete {name} if it exists"
                + (f" (and {record} if the publisher really changed the file)" if record.exists() else "")
                + " and download it again"
            )


def _recorded(record: Path) -> str:
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{record} should hold the SHA-256 of the file beside it but cannot be read: {error}; delete both and download again"
        ) from error


def _write_record(record: Path, entry: dict[str, object]) -> None:
    partial = record.with_name(f".{record.name}.{os.getpid()}.part")
    try:
        partial.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, record)
    finally:
        partial.unlink(missing_ok=True)
