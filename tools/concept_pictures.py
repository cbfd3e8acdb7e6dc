"""The pictures of docs/concepts.md, as SVG.

python tools/concept_pictures.py     writes docs/concept-*.svg

They show ideas, not measurements: no figure in them comes from a record, and none is given. Drawn 440 units wide with text of 14
and more, so that they can be read on a phone; on a light ground of their own, for pages may be dark; in the reader's own fonts.
Whatever a colour says, a shape or an outline says too.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path

WIDTH = 440
INK, MUTED, LINE, FROZEN, GROUND = "#1f2933", "#52606d", "#9aa5b1", "#dde3ea", "#fbfcfe"
BLUE, ORANGE, GREEN = "#2f6fb3", "#b64f15", "#2c7a57"
TIPS = (MUTED, GREEN)  # colours of arrows; lines of other colours are dashed and have no tip
PALE_BLUE, PALE_ORANGE, PALE_GREEN = "#dbe8f6", "#fbe6d6", "#dcf0e6"


def text(x: float, y: float, words: str, *, size: int = 14, fill: str = INK, anchor: str = "start", bold: bool = False) -> str:
    """One line of words."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, *, fill: str, stroke: str = LINE, dash: bool = False, r: int = 5) -> str:
    """A rectangle with rounded corners."""
    dashes = ' stroke-dasharray="4 3"' if dash else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{r}" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="1.5"{dashes}/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, *, stroke: str = MUTED) -> str:
    """From one point to another."""
    tip = f' marker-end="url(#tip{stroke[1:]})"' if stroke in TIPS else ' stroke-dasharray="4 3"'
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" stroke-width="2"{tip}/>'


def retained(x: float, y: float) -> str:
    """A sample that stays."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="7" fill="{BLUE}"/>'


def forgotten(x: float, y: float) -> str:
    """A sample that is to be forgotten."""
    return box(x - 6.5, y - 6.5, 13, 13, fill=ORANGE, stroke=ORANGE, r=1)


def left_out(x: float, y: float) -> str:
    """The place of a forgotten sample in its batch."""
    return box(x - 6.5, y - 6.5, 13, 13, fill="none", stroke=ORANGE, dash=True, r=1)


def node(x: float, y: float, colour: str) -> str:
    """The weights after a step."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="4.5" fill="{colour}"/>'


def page(height: int, title: str, parts: list[str]) -> str:
    """The whole file; ``title`` is for readers that are read to."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH * 1.3:g}" '
            f'height="{height * 1.3:g}" role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">',
            f"<title>{escape(title)}</title>",
            "<defs>",
            *(
                f'<marker id="tip{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" '
                f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
                for colour in TIPS
            ),
            "</defs>",
            box(1, 1, WIDTH - 2, height - 2, fill=GROUND, stroke="#d5dbe2", r=8),
            *parts,
            "</svg>",
            "",
        ]
    )


BATCHES = ("rrfr", "rrrr", "frrf")


def batches(y: float, *, replayed: bool) -> list[str]:
    """Three batches of four samples; ``r`` is retained, ``f`` forgotten."""
    parts = []
    for number, batch in enumerate(BATCHES):
        x = 66 + number * 116
        parts.append(box(x, y, 96, 28, fill="#fff"))
        for place, kind in enumerate(batch):
            shape = retained if kind == "r" else left_out if replayed else forgotten
            parts.append(shape(x + 18 + place * 20, y + 14))
    return parts


def walk(points: list[tuple[float, float]], colour: str) -> list[str]:
    """Weights before the first step and after each one."""
    arrows = [arrow(x1 + 7, y1, x2 - 7, y2, stroke=colour) for (x1, y1), (x2, y2) in pairwise(points)]
    return arrows + [node(x, y, colour) for x, y in points]


def path() -> str:
    """The recorded path and the replayed one."""
    xs = (44, 172, 288, 404)
    recorded = [(x, 108) for x in xs]
    ghost = [(x, 338) for x in xs]
    new = list(zip(xs, (338, 352, 358, 372), strict=True))
    return page(
        436,
        "The recorded path and the replayed path",
        [
            text(16, 28, "Fine-tuning, recorded while it runs", bold=True, size=15),
            *batches(46, replayed=False),
            *walk(recorded, MUTED),
            text(30, 132, "pre-trained", fill=MUTED),
            text(424, 132, "fine-tuned", fill=MUTED, anchor="end"),
            arrow(220, 138, 220, 158),
            box(16, 162, 408, 62, fill=PALE_BLUE, stroke=BLUE),
            text(220, 186, "trace", anchor="middle", bold=True, size=15),
            text(220, 209, "who was in which batch, features, rates, gradients", anchor="middle"),
            arrow(220, 228, 220, 248),
            text(16, 270, "Request: replayed without the forgotten", bold=True, size=15),
            *batches(286, replayed=True),
            *walk(ghost, "#b8c2cc"),
            *walk(new, GREEN),
            text(30, 396, "same start", fill=MUTED),
            text(424, 396, "new model", fill=GREEN, anchor="end", bold=True),
            retained(24, 418),
            text(37, 423, "retained"),
            forgotten(126, 418),
            text(139, 423, "to be forgotten"),
            left_out(268, 418),
            text(281, 423, "left out of its batch"),
        ],
    )


DEPTHS = (
    ("head", "needs the trace alone, no images", (False, False, False)),
    ("1, the last block", "needs images, and rows of that block", (False, False, True)),
    ("all", "needs images, and rows of all that is tuned", (True, True, True)),
)


def network(y: float, moves: tuple[bool, ...]) -> list[str]:
    """Three blocks, each frozen but for a few tuned parameters, and the head, which always moves."""
    parts = []
    for number, moved in enumerate(moves):
        x = 16 + number * 108
        parts += [
            box(x, y, 88, 62, fill=FROZEN),
            text(x + 44, y + 22, f"block {number + 1}", anchor="middle"),
            box(x + 8, y + 32, 72, 22, fill=GREEN if moved else PALE_ORANGE, stroke=GREEN if moved else ORANGE, dash=not moved),
            text(x + 44, y + 48, "moves" if moved else "stays", anchor="middle", fill="#fff" if moved else ORANGE),
            arrow(x + 90, y + 31, x + 106, y + 31),
        ]
    parts += [
        box(340, y, 84, 62, fill=GREEN, stroke=GREEN),
        text(382, y + 28, "head", anchor="middle", fill="#fff"),
        text(382, y + 48, "moves", anchor="middle", fill="#fff"),
    ]
    return parts


def depth() -> str:
    """What moves at each depth."""
    parts = []
    for number, (name, needs, moves) in enumerate(DEPTHS):
        y = 28 + number * 128
        parts += [text(16, y, f"depth {name}", bold=True, size=15), text(16, y + 20, needs, fill=MUTED)]
        parts += network(y + 30, moves)
    y = 404
    parts += [
        box(16, y, 18, 14, fill=GREEN, stroke=GREEN, r=2),
        text(42, y + 12, "tuned, leaves the recorded path"),
        box(16, y + 24, 18, 14, fill=PALE_ORANGE, stroke=ORANGE, dash=True, r=2),
        text(42, y + 36, "tuned on all samples, stays as it was"),
        box(16, y + 48, 18, 14, fill=FROZEN, r=2),
        text(42, y + 60, "frozen: pre-trained, never fine-tuned"),
    ]
    return page(y + 78, "Which tuned parameters move at the depths head, last block and all", parts)


PARTS = (
    (
        "Done by unlearn",
        GREEN,
        PALE_GREEN,
        (
            "a new model; the run stays as it was",
            "tuned parameters of the depth: moved",
            "the result's trace: ids, labels, visits and",
            "  features of forgotten samples are out",
        ),
    ),
    (
        "Yours to erase",
        BLUE,
        PALE_BLUE,
        (
            "the images, and every copy of them",
            "the old run and its trace: fastntk erase",
            "old checkpoints, exports, backups",
            "rows on disk, the cache of the audit",
            "lists of ids, logs, the key of the result",
        ),
    ),
    (
        "Still there afterwards",
        ORANGE,
        PALE_ORANGE,
        (
            "tuned parameters that the depth left",
            "what they put into the features",
            "beyond depth head: sums of old batches,",
            "  in the trace of the result",
            "weights outside the tuned ones, if they",
            "  were trained on the same data",
            "models that others made from yours",
        ),
    ),
)


def erased() -> str:
    """Who erases what, and what stays."""
    parts, y = [], 16.0
    for title, colour, pale, lines in PARTS:
        height = 40 + 23 * len(lines)
        parts += [box(16, y, 408, height, fill=pale, stroke=colour), text(32, y + 26, title, bold=True, size=16, fill=colour)]
        for number, line in enumerate(lines):
            words, at = line.strip(), y + 50 + 23 * number
            parts.append(text(50, at, words, size=15))
            if not line.startswith(" "):
                parts.append(f'<circle cx="38" cy="{at - 5:g}" r="3.5" fill="{colour}"/>')
        y += height + 12
    return page(int(y + 4), "What a request erases, what you have to erase, and what stays", parts)


def spread() -> str:
    """Retrains of several seeds, the model before, and an unlearned model."""
    retrains = ((286, 88), (346, 112), (322, 166), (262, 150))
    parts = [
        f'<circle cx="304" cy="129" r="76" fill="{PALE_BLUE}" stroke="{BLUE}" stroke-dasharray="4 3" stroke-width="1.5"/>',
        text(304, 36, "Retrains, one a seed", anchor="middle", fill=BLUE, bold=True),
        *(retained(x, y) for x, y in retrains),
        f'<line x1="293" y1="91" x2="338" y2="109" stroke="{BLUE}" stroke-width="2"/>',
        text(304, 234, "the spread: how far two", anchor="middle"),
        text(304, 252, "of them lie apart", anchor="middle"),
        forgotten(58, 110),
        text(16, 90, "Full", fill=ORANGE, bold=True),
        text(16, 140, "before the", fill=MUTED),
        text(16, 158, "request", fill=MUTED),
        arrow(72, 112, 196, 132),
        f'<path d="M214 125l11 11-11 11-11-11z" fill="{GREEN}"/>',
        text(206, 172, "unlearned", anchor="end", fill=GREEN, bold=True),
        text(206, 192, "how far from", anchor="end", fill=MUTED),
        text(206, 210, "the Retrains?", anchor="end", fill=MUTED),
    ]
    return page(270, "Retrains of several seeds as the yardstick of an unlearned model", parts)


PICTURES: dict[str, Callable[[], str]] = {
    "concept-spread.svg": spread,
    "concept-path.svg": path,
    "concept-depth.svg": depth,
    "concept-erased.svg": erased,
}


def main() -> None:
    """Write them into docs/."""
    docs = Path(__file__).resolve().parents[1] / "docs"
    for name, draw in PICTURES.items():
        (docs / name).write_text(draw(), "utf-8")


if __name__ == "__main__":
    main()
