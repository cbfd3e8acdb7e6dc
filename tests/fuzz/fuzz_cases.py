"""Cases by kind: a copy of the material with one thing wrong, the command that reads it, and what must not have changed if it is
accepted.

Three sorts of wrong. Damaged: nothing was sealed again, so nothing that is loaded may differ. Resealed: one field was changed
and all digests computed anew; the field may have its new value where that is one it may have, but weights, ids, labels, what was
forgotten and the verdict are those of before. Forged: the numbers themselves were changed and sealed again, which no digest can
tell; the command has to end with 0, 2 or 3, nothing more.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz_material import PERSON, THEIRS
from fuzz_mutations import damaged, edited
from PIL import Image

from fastntk.auditing.record import sealed
from fastntk.base.digest import json_digest
from fastntk.storage.manifest import MANIFEST, SEAL, seal

ASK = ["--ids", "bee/0.png", "--no-images", "--method", "path-replay"]
TUNE = ["finetune", "resnet20", "--weights", "cifar100", "--tune", "head", "--epochs", "1", "--no-trace"]
ALL = "all"


@dataclass(frozen=True)
class Attempt:
    """What was done to what, the command, and what to compare afterwards."""

    what: str
    command: list[object]
    loaded: tuple[object, ...]
    """The function of fuzz_loaded that says what the command had in hands, and its arguments."""
    original: tuple[object, ...] = ()
    """The arguments that give what it would have been undamaged."""
    same: tuple[str, ...] = (ALL,)
    """Which of what was loaded has to be that of the original; fields unknown to one of them are passed over."""
    check: Callable[[Any], str | None] | None = None
    """Says what is wrong with what was loaded, where that does not follow from the original."""


def copied(source: Path, target: Path) -> Path:
    """A copy of a file or folder, of links: whoever changes a file writes a new one."""
    if source.is_dir():
        return Path(shutil.copytree(source, target, copy_function=os.link))
    os.link(source, target)
    return target


def replaced(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def damage_file(path: Path, draw: Random) -> str:
    what, content = damaged(path.read_bytes(), draw)
    replaced(path, content)
    return f"{path.name}: {what}"


def write_manifest(folder: Path, manifest: Any) -> None:
    """Seal a manifest again; one that no JSON digest exists for is written as it is."""
    if isinstance(manifest, dict):
        manifest.pop(SEAL, None)
        manifest[SEAL] = seal(manifest)
    replaced(folder / MANIFEST, json.dumps(manifest).encode())


def edit_manifest(folder: Path, draw: Random) -> str:
    what, manifest = edited(json.loads((folder / MANIFEST).read_text()), draw, spare=(SEAL,))
    write_manifest(folder, manifest)
    return f"{MANIFEST} resealed: {what}"


def forge_tensors(folder: Path, draw: Random) -> str:
    """Change a file of tensors and vouch for it anew."""
    manifest = json.loads((folder / MANIFEST).read_text())
    name = draw.choice(sorted(manifest["files"]))
    content = (folder / name).read_bytes()
    size = 8 + struct.unpack("<Q", content[:8])[0]
    part = slice(0, size) if draw.random() < 0.7 else slice(0, len(content))
    what, changed = damaged(content[part], draw)
    content = changed + content[part.stop :]
    replaced(folder / name, content)
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_manifest(folder, manifest)
    return f"{name} forged: {what}"


def run(place: Path, material: Path, draw: Random) -> Attempt:
    """A run's manifest and weights."""
    folder = copied(material / "run", place / "run")
    sort = draw.choice(("damaged", "resealed", "resealed", "forged"))
    if sort == "damaged":
        what = damage_file(draw.choice([folder / MANIFEST, *sorted(folder.glob("*.safetensors"))]), draw)
    else:
        what = edit_manifest(folder, draw) if sort == "resealed" else forge_tensors(folder, draw)
    unlearn = ["unlearn", folder, *ASK, "--out", place / "out"]
    same = {"damaged": (ALL,), "resealed": ("weights", "model", "ids", "labels", "classes", "numbers"), "forged": ()}[sort]
    return Attempt(what, draw.choice((["info", folder], unlearn)), ("folder", folder), (material / "run",), same)


def result(place: Path, material: Path, draw: Random) -> Attempt:
    """A result's manifest and weights, and its key."""
    folder = copied(material / "result", place / "result")
    key = copied(material / "result.request.key", place / "result.request.key")
    sort = draw.choice(("damaged", "resealed", "resealed", "forged", "key"))
    if sort in ("damaged", "key"):
        what = damage_file(
            key if sort == "key" else draw.choice([folder / MANIFEST, *sorted(folder.glob("*.safetensors"))]), draw
        )
    else:
        what = edit_manifest(folder, draw) if sort == "resealed" else forge_tensors(folder, draw)
    commands: list[list[object]] = [["info", folder], ["unlearn", folder, *ASK, "--out", place / "out"]]
    commands.append(["unlearn", material / "run", *ASK, "--after", folder, "--out", place / "out"])
    if sort != "key":
        commands.append(["report", folder, "--out", place / "page.html"])
    chosen = draw.choice(commands)
    loaded: tuple[object, ...]
    original: tuple[object, ...]
    if "--after" in chosen or sort == "damaged":
        loaded, original = ("result", folder, material / "run"), (material / "result", material / "run")
    else:
        loaded, original = ("folder", folder), (material / "result",)
    same = ("weights", "model", "ids", "labels", "classes", "numbers", "forgotten")
    return Attempt(what, chosen, loaded, original, {"damaged": (ALL,), "forged": ()}.get(sort, same))


def trace(place: Path, material: Path, draw: Random) -> Attempt:
    """The header and the files of a trace."""
    source = draw.choice(("run", "result"))
    folder = copied(material / source, place / "run")
    if source == "result":
        copied(material / "result.request.key", place / "run.request.key")
    files = sorted((folder / "trace").iterdir())
    sort = draw.choice(("damaged", "resealed", "forged"))
    if sort == "damaged":
        what, same = damage_file(draw.choice(files), draw), (ALL,)
    else:
        path = folder / "trace" / "trace.json"
        header, same = json.loads(path.read_text()), ("weights", "model")
        if sort == "resealed":
            what, header = edited(header, draw, spare=("seal",))
            what = f"trace.json resealed: {what}"
        else:
            what = forge_series(folder / "trace", header, draw)
        header.pop("seal", None)
        header["seal"] = json_digest_or_none(header)
        replaced(path, json.dumps(header).encode())
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["trace"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        write_manifest(folder, manifest)
    unlearn = ["unlearn", folder, *ASK, "--out", place / "out"]
    return Attempt(what, draw.choice((["info", folder], unlearn, unlearn)), ("folder", folder), (material / source,), same)


def forge_series(folder: Path, header: dict[str, Any], draw: Random) -> str:
    name = draw.choice(sorted(header["files"]))
    content = (folder / name).read_bytes()
    if name == "listed.json":
        what, listed = edited(json.loads(content), draw)
        content = json.dumps(listed).encode()
    elif name.endswith(".bin") and draw.random() < 0.7:  # the size stays, the numbers may be anything
        at = draw.randrange(len(content)) // 4 * 4
        value = draw.choice(
            (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\xc0\x7f", draw.randbytes(4))
        )
        what, content = f"{value!r} at {at}", content[:at] + value + content[at + 4 :]
    else:
        what, content = damaged(content, draw)
    replaced(folder / name, content)
    header["files"][name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return f"{name} forged: {what}"


def json_digest_or_none(value: Any) -> str | None:
    try:
        return json_digest(value)
    except ValueError:  # NaN has none
        return None


def audit(place: Path, material: Path, draw: Random) -> Attempt:
    """An audit record, in its result or alone."""
    folder = copied(material / "result", place / "result")
    copied(material / "result.request.key", place / "result.request.key")
    path = folder / "audit.json"
    sort = draw.choice(("damaged", "edited", "resealed", "resealed"))
    if sort == "damaged":
        what = damage_file(path, draw)
    else:
        what, record = edited(json.loads(path.read_text()), draw, spare=("record_sha256",))
        try:
            record = sealed(record) if sort == "resealed" else record
        except ValueError:  # NaN has no digest
            sort = "edited"
        replaced(path, json.dumps(record).encode())
        what = f"audit.json {sort}: {what}"
    alone = shutil.copy(path, place / "record.json")
    commands = (["info", folder], ["report", folder], ["report", alone])
    same = ("verdict",) if sort == "resealed" else (ALL,)
    return Attempt(what, draw.choice(commands), ("audit", path), (material / "result",), same)


def record(place: Path, material: Path, draw: Random) -> Attempt:
    """A record of `reproduce`, from which its table is made again."""
    folder = copied(material / "table", place / "table")
    path = draw.choice(sorted((folder / "records").rglob("*.json")))
    same: tuple[str, ...] = (ALL,)
    if draw.random() < 0.4:
        what = damage_file(path, draw)
    else:
        what, content = edited(json.loads(path.read_text()), draw, spare=("record_sha256",))
        if draw.random() < 0.7:
            content.pop("record_sha256", None)
            content["record_sha256"] = json_digest_or_none(content)
            same = ()
        replaced(path, json.dumps(content).encode())
        what = f"{path.name}: {what}" + ("" if same else ", resealed")
    return Attempt(what, ["reproduce", "table1", "--out", folder], ("table", folder), (material / "table",), same)


def picture(place: Path, material: Path, draw: Random) -> Attempt:
    """One picture of a folder: as new data, and as the data of a run, which knows its digest."""
    folder = copied(material / "photos", place / "photos")
    path = draw.choice(sorted(folder.rglob("*.*")))
    known = draw.random() < 0.4
    sort = draw.choice(("damaged", "damaged", "damaged", "wrong inside", "giant", "strange"))
    same: tuple[str, ...] = (ALL,)
    if sort == "damaged":
        what = damage_file(path, draw)
        if path.suffix != ".png" and not known and ": cut" not in what and ": empty" not in what:
            same = ("ids", "labels", "classes")  # no checksum in it: another picture, or none
    elif sort == "wrong inside":
        what = f"{path.name}: another format inside"
        other = draw.choice([one for one in sorted(folder.rglob("*.*")) if one.suffix != path.suffix])
        texts = (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>", b"%PDF-1.4\n", b"MZ", other.read_bytes())
        replaced(path, draw.choice(texts))
        same = (ALL,) if known else ("ids", "labels", "classes")
    else:
        name, content = giant(draw) if sort == "giant" else strange(draw)
        replaced(path, content)
        what, same = f"{path.name}: {name}", (ALL,) if known else ("ids", "labels", "classes")
    command: list[object] = [*TUNE, "--data", folder, "--out", place / "out"]
    if known:
        command = ["unlearn", material / "run", *ASK[:2], *ASK[3:], "--depth", "head", "--data", folder, "--out", place / "out"]
    return Attempt(what, command, ("data", folder), (material / "photos",), same)


def giant(draw: Random) -> tuple[str, bytes]:
    """A small file whose header promises a giant picture."""
    kind, side = draw.choice(("PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")), draw.choice((12_000, 40_000, 65_535))
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, kind)
    content = stream.getvalue()
    if kind == "PNG":
        head = b"IHDR" + struct.pack(">II", side, side) + content[24:29]
        content = content[:12] + head + struct.pack(">I", binascii.crc32(head)) + content[33:]
    elif kind == "BMP":
        content = content[:18] + struct.pack("<ii", side, side) + content[26:]
    elif kind == "GIF":
        content = content[:6] + struct.pack("<HH", side, side) + content[10:]
        content = re.sub(rb",\x00{4}\x08\x00\x08\x00", b"," + bytes(4) + struct.pack("<HH", side, side), content, count=1)
    elif kind == "PPM":
        content = content.replace(b"8 8", f"{side} {side}".encode())
    elif kind == "TIFF":
        for tag in (256, 257):
            content = re.sub(re.escape(struct.pack("<HHI", tag, 4, 1)) + b"....", struct.pack("<HHII", tag, 4, 1, side), content)
    else:
        content = content.replace(b"VP8 ", b"VP8X", 1)
    return f"{kind} that says {side} × {side}", content


def strange(draw: Random) -> tuple[str, bytes]:
    """A whole picture of an unusual mode or shape, the largest within the bounds among them."""
    mode, size = draw.choice((("1", (9, 9)), ("LA", (9, 9)), ("P", (9, 9)), ("RGBA", (9, 9)), ("I;16", (9, 9)),
                              ("L", (20_000, 1)), ("1", (11_000, 11_000)), ("RGBA", (5_000, 5_000))))  # fmt: skip
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, "PNG")
    return f"PNG of mode {mode}, {size[0]} × {size[1]}", stream.getvalue()


def npz(place: Path, material: Path, draw: Random) -> Attempt:
    """An .npz: damaged, or whole with odd arrays in it."""
    path = copied(material / "a.npz", place / "a.npz")
    same: tuple[str, ...] = (ALL,)
    if draw.random() < 0.6:
        what = damage_file(path, draw)
    else:
        with np.load(path) as stored:
            arrays = dict(stored)
        name = draw.choice(sorted(arrays))
        old = arrays[name]
        options = {
            "float": old.astype("U").astype("U8") if name in ("id", "classes") else old.astype(np.float32),
            "short": old[:-1],
            "empty": old[:0],
            "more axes": old[None],
            "twice": np.concatenate([old, old]),
            "one for all": np.broadcast_to(old[:1], old.shape),
            "objects": np.array([{}, None], dtype=object),
            "text": np.array(["\x1b[2J", "b\n"] * 4),
            "bytes": np.array([b"\xff\xfe"] * 8),
            "vast": np.full(8, 2**62),
            "times": np.zeros(8, "M8[s]"),
            "structured": np.zeros(8, [("a", "u1")]),
        }
        what = draw.choice(sorted(options))
        arrays[name] = options[what]
        path.unlink()
        np.savez_compressed(path, **arrays)
        what, same = f"{name}: {what}", ()
    return Attempt(what, [*TUNE, "--data", path, "--out", place / "out"], ("data", path), (material / "a.npz",), same)


def cifar(place: Path, material: Path, draw: Random) -> Attempt:
    """A CIFAR archive, which has a checksum; one repacked after damage; the extracted folder, which has none."""
    sort = draw.choice(("archive", "archive", "repacked", "folder"))
    same: tuple[str, ...] = ()
    if sort == "folder":
        target = copied(material / "cifar", place / "cifar")
        what = damage_file(draw.choice(sorted(target.rglob("[tm]*"))), draw)
    else:
        target = copied(material / "cifar.tar.gz", place / "cifar.tar.gz")
        if sort == "archive":
            what, same = damage_file(target, draw), (ALL,)
        else:
            what, content = damaged(gzip.decompress(target.read_bytes()), draw)
            replaced(target, gzip.compress(content, 1))
            what = f"repacked: {what}"
    source, original = f"cifar100:{target}", f"cifar100:{material / 'cifar.tar.gz'}"
    return Attempt(what, [*TUNE, "--data", source, "--out", place / "out"], ("data", source), (original,), same)


WORDS = ("bee/0.png", "*", "**", "bee/[", "\ufeff", "\x00", "\r", "cat/*", "nobody", '"', "# ", "a" * 10_000, "\u202e", "\x1b[2J")


def ids(place: Path, material: Path, draw: Random) -> Attempt:
    """A text file of ids. What it then says may be another request, but it is the request that is done."""
    path = copied(material / "ids.txt", place / "ids.txt")
    what = damage_text(path, draw)
    content = path.read_bytes()

    def check(loaded: Any) -> str | None:
        lines = [re.split(r"[ \t]#", line)[0].strip(" \t\v\f\ufeff") for line in re.split(r"[\r\n]", content.decode())]
        lines = [line for line in lines if line and not line.startswith("#")]
        plain = {line for line in lines if not set(line) & set("*?[")}
        gone = set(loaded["forgotten"])
        extra = gone - plain
        return (
            None if plain <= gone and (not extra or len(plain) < len(set(lines))) else f"{gone} were forgotten, {lines} asked for"
        )

    command = ["unlearn", material / "run", "--ids-file", path, *ASK[2:], "--out", place / "out"]
    return Attempt(what, command, ("forgotten", place / "out", material / "run"), (), (), check)


def persons(place: Path, material: Path, draw: Random) -> Attempt:
    """A table of persons; the same."""
    path = copied(material / "persons.csv", place / "persons.csv")
    what = damage_text(path, draw)
    text = path.read_bytes()

    def check(loaded: Any) -> str | None:
        gone = set(loaded["forgotten"])
        missing = [name for name in gone if name.encode() not in text]
        lines = [line.strip() for line in re.split(r"[\r\n]+", text.decode())]
        whole = {name for name in THEIRS if f"{name},{PERSON}" in lines or f"{PERSON},{name}" in lines}
        return None if not missing and whole <= gone else f"{gone} were forgotten, of {whole}"

    command = ["unlearn", material / "run", "--person", PERSON, "--persons-file", path, *ASK[2:], "--out", place / "out"]
    return Attempt(what, command, ("forgotten", place / "out", material / "run"), (), (), check)


def damage_text(path: Path, draw: Random) -> str:
    if draw.random() < 0.5:
        return damage_file(path, draw)
    text, word = path.read_text(), draw.choice(WORDS)
    at = draw.choice([0, len(text), *(place.end() for place in re.finditer("[\n,]", text))])
    ending = draw.choice(("", "\n", "\r\n"))
    replaced(path, (text[:at] + word + ending + text[at:]).encode("utf-8", "surrogatepass"))
    return f"{path.name}: {word[:20]!r} at {at}"


KINDS: dict[str, tuple[Callable[[Path, Path, Random], Attempt], int]] = {
    "run": (run, 90),
    "result": (result, 70),
    "trace": (trace, 90),
    "audit": (audit, 70),
    "record": (record, 40),
    "picture": (picture, 60),
    "npz": (npz, 25),
    "cifar": (cifar, 25),
    "ids": (ids, 15),
    "persons": (persons, 15),
}
"""How many of each: 500."""
