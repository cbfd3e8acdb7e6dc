"""From a matplotlib figure to a picture that lives in a page: inline SVG whose colours and letters are the page's own.

matplotlib draws with one stand-in colour a role; here each becomes a CSS variable, so that one picture serves light,
dark and print. Text stays text, in the page's font. Ids get a prefix, for a page holds many pictures. The
same figure gives the same bytes: a fixed hash salt, no date, no settings of the user.

Not for pictures that stand alone: outside the page the variables have no values.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.style
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

ROLES = ("ink", "soft", "grid", "full", "unlearned", "retrain", "forget", "other", "page")
COLOUR = {role: f"#0102{number:02x}" for number, role in enumerate(ROLES, start=16)}
"""Stand-ins to draw with; ``full``, ``unlearned`` and ``retrain`` are the models of the record."""

WIDTH = 300
"""Width of every plot in px: read at its own size on a phone, where a wide plot would shrink to nothing."""

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fastntk",
    "text.parse_math": False,  # a class name may have dollars in it
    "font.family": ["DejaVu Sans"],
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": COLOUR["soft"],
    "axes.labelcolor": COLOUR["ink"],
    "axes.labelsize": 11.5,
    "axes.axisbelow": True,
    "text.color": COLOUR["ink"],
    "xtick.color": COLOUR["soft"],
    "ytick.color": COLOUR["soft"],
    "xtick.labelcolor": COLOUR["ink"],
    "ytick.labelcolor": COLOUR["ink"],
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "grid.color": COLOUR["grid"],
    "grid.linewidth": 0.8,
    "hatch.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 11.5,
    "legend.handlelength": 1.9,
    "legend.columnspacing": 0.9,
    "legend.handletextpad": 0.5,
    "legend.borderaxespad": 0.0,
    "legend.borderpad": 0.0,
}


@dataclass(frozen=True)
class Plot:
    """A picture for the page: ``svg`` is safe markup, ``title`` its heading, ``words`` what it shows, with the numbers."""

    svg: Markup
    title: str
    words: str


@contextlib.contextmanager
def drawing(height: float) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure so many px high and its axes, under the settings of this file only."""
    with mpl.style.context("default", after_reset=True), mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # Letters that matplotlib's own font lacks are measured wrongly but written correctly.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        yield figure, axes


def finish(figure: Figure, name: str, *, title: str, words: str) -> Plot:
    """Turn a figure into a plot; ``name`` is unique on the page. Call it inside :func:`drawing`."""
    name = f"plot-{name}"
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", dpi=72, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _plain_names(root)
    for child in [child for child in root if child.tag == "metadata"]:
        root.remove(child)
    _own_ids(root, name)
    for element in root.iter():
        if "style" in element.attrib:
            element.set("style", _page_style(element.get("style", "")))
        for key in ("fill", "stroke"):
            if key in element.attrib:
                element.set("style", _page_style(f"{key}: {element.attrib.pop(key)}; {element.get('style', '')}".strip("; ")))
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update(
        {"viewBox": box, "role": "img", "class": "plot", "aria-labelledby": f"{name}-title {name}-desc", "focusable": "false"}
    )
    for position, (tag, content) in enumerate((("title", title), ("desc", words))):
        element = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        element.text = content
        element.tail = "\n"
        root.insert(position, element)
    markup = ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)
    return Plot(Markup(re.sub(r"\s*\n\s*", "\n", markup)), title, words)  # ElementTree escaped it


def _plain_names(root: ElementTree.Element) -> None:
    """Drop namespaces: inside HTML an <svg> has its own already."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            element.attrib[key.rpartition("}")[2]] = element.attrib.pop(key)


def _own_ids(root: ElementTree.Element, name: str) -> None:
    """Prefix the ids that something refers to; drop the others."""
    markup = ElementTree.tostring(root, encoding="unicode")
    references = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', markup))
    targets = {first or second for first, second in references}
    short = {old: f"{name}-{number}" for number, old in enumerate(dict.fromkeys(_ids(root))) if old in targets}
    for element in root.iter():
        if "id" in element.attrib:
            old = element.attrib.pop("id")
            if old in short:
                element.set("id", short[old])
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                element.set(key, f"#{short[value[1:]]}")
            elif "url(#" in value:
                element.set(key, re.sub(r"url\(#([^)]+)\)", lambda match: f"url(#{short[match[1]]})", value))


def _ids(root: ElementTree.Element) -> list[str]:
    return [element.attrib["id"] for element in root.iter() if "id" in element.attrib]


def _page_style(style: str) -> str:
    """Stand-in colours to variables; the font's size and weight stay, its family is the page's."""
    for role, colour in COLOUR.items():
        style = style.replace(colour, f"var(--plot-{role})")
    style = re.sub(r"font-family:[^;]*;?\s*", "", style)
    return re.sub(r"font:\s*((?:bold|\d{3})\s+)?([\d.]+px)[^;]*", _font, style)


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match[1].strip()}; " if match[1] else ""
    return f"{weight}font-size: {match[2]}"
