"""The code of single modules, beside that of whole rooms (:mod:`fastntk.reproduce.code`).

What a lab keeps of a model (logits, margins, epochs of relearning) rests on a module or two of ``auditing``, not on its limits
and words: those may change without all models being measured again. Records, which hold judgements, name the whole room.
"""

from __future__ import annotations

from fastntk.reproduce.code import DIGITS, PACKAGE, source_digest


def module_code(*paths: str) -> dict[str, str]:
    """Digests of these modules' source as it is now, by path in the package."""
    return {path: source_digest((PACKAGE / path).read_text("utf-8"))[:DIGITS] for path in paths}
