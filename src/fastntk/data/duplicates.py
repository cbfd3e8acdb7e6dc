"""Copies of what is to be forgotten among what stays. A model that keeps one copy of a picture has not forgotten the picture.

Exact copies have the same inputs to the last bit, whatever their id and label: found by a digest of each sample. Near copies look
alike (saved again as JPEG, resized, a little brighter): of each picture a difference hash of 128 bits is taken,

    bit = is this cell of an 8 × 9 (and 9 × 8) grid of mean gray values brighter than its neighbour?

and pictures whose hashes differ in few bits are compared by the correlation of 16 × 16 gray values. Mirrored, turned and strongly
cropped copies are not found; pictures of the same thing may be. Not for deciding: both lists are for people to look at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fastntk.base.errors import InputError, listing
from fastntk.data.request import Split
from fastntk.data.samples import Samples

Check = Literal["exact", "near"]

MOST_BITS = 20
"""Of 128, in which the hashes of near copies may differ."""
LEAST_CORRELATION = 0.95
"""Of the gray values of near copies."""

_CHUNK = 1024
_PAIRS = 1 << 22
_BITS = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)


@dataclass(frozen=True)
class Copies:
    """Ids that stay although they are copies of a sample to be forgotten, in the order of the data.

    ``near`` holds those that are not exact copies; None where nobody asked for them.
    """

    exact: tuple[str, ...]
    near: tuple[str, ...] | None = None

    def details(self, *, most: int = 8) -> dict[str, Any]:
        """Counts and the first ids, ready for JSON."""
        kinds = {"exact": self.exact, "near": self.near}
        return {kind: None if ids is None else {"count": len(ids), "first": list(ids[:most])} for kind, ids in kinds.items()}

    def __str__(self) -> str:
        sentences = []
        if self.exact:
            sentences.append(
                f"{len(self.exact):,} of the samples that stay are exact copies of some to be forgotten: {listing(self.exact)}. "
                "Erasing one copy erases nothing: name them in the request too."
            )
        else:
            sentences.append("No sample that stays is an exact copy of one to be forgotten.")
        if self.near:
            sentences.append(
                f"{len(self.near):,} look like a sample to be forgotten: {listing(self.near)}. Look at them: if they are copies, "
                "erasing one copy erases nothing."
            )
        elif self.near is not None:
            sentences.append("None looks like one either (near copies; mirrored ones are not found).")
        return "\n".join(sentences)


def find_copies(samples: Samples | None, split: Split, *, check: Check = "exact") -> Copies | None:
    """Look for copies of what the split forgets in what it retains; ``near`` looks for both kinds. None without images."""
    if check not in get_args(Check):
        raise InputError(f"unknown check for duplicates {check!r}: expected {' or '.join(map(repr, get_args(Check)))}")
    if samples is None:
        if check == "near":
            raise InputError("near copies cannot be looked for: there are no images at hand. Give them, or leave the check out")
        return None
    exact = _exact(samples, split)
    if check == "exact":
        return Copies(_ids(samples, exact))
    near = sorted(set(_near(samples.inputs, split)) - set(exact))
    return Copies(_ids(samples, exact), _ids(samples, near))


def _ids(samples: Samples, positions: Sequence[int]) -> tuple[str, ...]:
    return tuple(samples.ids[position] for position in positions)


def _exact(samples: Samples, split: Split) -> list[int]:
    if not len(split.forget):
        return []
    forget_digests = frozenset(_digests(samples.inputs, split.forget))
    retained = zip(split.retain.tolist(), _digests(samples.inputs, split.retain))
    return [position for position, digest in retained if digest in forget_digests]


def _digests(inputs: Tensor, positions: Tensor) -> list[bytes]:
    digests: list[bytes] = []
    for part in positions.split(_CHUNK):
        rows = inputs[part.to(inputs.device)].detach().cpu().contiguous()
        plain = rows.reshape(len(rows), -1).view(torch.uint8).numpy() if rows.numel() else np.empty((len(rows), 0), np.uint8)
        digests += [hashlib.blake2b(row.data, digest_size=16).digest() for row in plain]
    return digests


def _near(inputs: Tensor, split: Split) -> list[int]:
    """Positions that are retained and look like one that is forgotten."""
    if inputs.ndim != 4:
        raise InputError(f"near copies are looked for among pictures (n, channels, H, W), not {tuple(inputs.shape)}")
    forget, forget_gray = _hashes(inputs, split.forget)
    retain, retain_gray = _hashes(inputs, split.retain)
    alike = np.zeros(len(retain), bool)
    size = max(1, _PAIRS // max(1, len(retain)))
    for start in range(0, len(forget), size):
        part = forget[start : start + size]
        differing = np.zeros((len(part), len(retain)), np.uint8)
        for word in range(forget.shape[1]):
            differing += _BITS[part[:, None, word] ^ retain[None, :, word]]
        of_forget, of_retain = np.nonzero(differing <= MOST_BITS)
        correlation = np.einsum("ij,ij->i", forget_gray[start + of_forget], retain_gray[of_retain])
        alike[of_retain[correlation >= LEAST_CORRELATION]] = True
    positions: list[int] = split.retain[torch.from_numpy(alike)].tolist()
    return positions


def _hashes(inputs: Tensor, positions: Tensor) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
    """Hashes (k, 8) of 16 bits each, and gray values (k, 256) with mean 0 and length 1 (0 where a picture is all one gray)."""
    words, grays = [np.empty((0, 8), np.uint16)], [np.empty((0, 256), np.float32)]
    for part in positions.split(_CHUNK):
        gray = inputs[part.to(inputs.device)].detach().float().mean(1, keepdim=True)
        across, down = adaptive_avg_pool2d(gray, (8, 9)), adaptive_avg_pool2d(gray, (9, 8))
        bits = torch.cat([(across.diff(dim=3) > 0).flatten(1), (down.diff(dim=2) > 0).flatten(1)], 1)
        words.append(np.packbits(bits.cpu().numpy(), axis=1).view(np.uint16))
        small = adaptive_avg_pool2d(gray, (16, 16)).flatten(1)
        small = small - small.mean(1, keepdim=True)
        grays.append((small / small.norm(dim=1, keepdim=True).clamp_min(1e-6)).cpu().numpy())
    return np.concatenate(words), np.concatenate(grays)
