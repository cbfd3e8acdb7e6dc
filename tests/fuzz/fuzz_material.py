"""What is damaged: pictures in every format, a recorded run on them, a result with its audit, records, archives."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from forked import Server

CLASSES = ("ape", "bee", "cat")
EACH = 5
ENDINGS = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "gif": "GIF", "webp": "WEBP", "tif": "TIFF", "ppm": "PPM"}
AUDIT = ("--reference", "retrain", "--retrains", "0", "--no-probes", "--relearn-cap", "1")
PERSON, THEIRS = "Ann", ("ape/1.jpg", "cat/2.webp")


def make(place: Path, server: Server) -> None:
    """Make it all; the commands run in the server itself, which then has imported what they need."""
    random = np.random.default_rng(0)
    pictures(place / "photos", EACH, random)
    pictures(place / "holdout", 2, random)
    tune = ["finetune", "resnet20", "--weights", "cifar100", "--tune", "norm+head", "--epochs", "1", "--batch-size", "6"]
    server.inside(*tune, "--data", place / "photos", "--out", place / "run")
    ask = ["--ids", ",".join(THEIRS), "--no-images"]
    server.inside("unlearn", place / "run", *ask, "--out", place / "result")
    server.inside("audit", place / "run", place / "result", "--holdout", place / "holdout", *AUDIT)
    server.inside("report", place / "result", "--out", place / "page.html")
    server.inside("info", place / "result")
    server.inside("reproduce", "table1", "--out", place / "table")
    (place / "ids.txt").write_text("# asked for on Monday\n" + "\n".join(THEIRS) + "\nbee/*.png  # all of these\n")
    rows = [f"{name},{PERSON}" for name in THEIRS] + ["bee/0.png,Bob", "bee/1.bmp,Bob"]
    (place / "persons.csv").write_text("\n".join(["id,person", *rows]) + "\n")
    archives(place, random)


def pictures(folder: Path, each: int, random: np.random.Generator) -> None:
    """One sub-folder a class; the formats take turns."""
    kinds = list(ENDINGS.items())
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            ending, kind = kinds[(number + label) % len(kinds) if number else 0]
            pixels = random.integers(70 * label, 70 * label + 80, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{ending}", kind)


def archives(place: Path, random: np.random.Generator) -> None:
    """An .npz, and a small CIFAR-100 as an archive and as a folder."""
    pixels, labels = random.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8), [0, 1] * 4
    names = np.array([f"n{number}" for number in range(8)])
    np.savez_compressed(place / "a.npz", x=pixels, y=labels, id=names, classes=np.array(["ape", "bee"]))
    batch = pickle.dumps({b"data": pixels.reshape(8, 3072), b"fine_labels": labels}, protocol=2)
    meta = pickle.dumps({b"fine_label_names": [b"ape", b"bee"]}, protocol=2)
    folder = place / "cifar" / "cifar-100-python"
    folder.mkdir(parents=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in {"train": batch, "test": batch, "meta": meta}.items():
            (folder / name).write_bytes(content)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (place / "cifar.tar.gz").write_bytes(stream.getvalue())
