"""A table as Markdown, LaTeX or HTML: the same words in three formats. Knows no torch."""

from __future__ import annotations

from html import escape

from fastntk.reproduce.tables import Block, Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", ">": "$>$", "<": "$<$", "–": "--", "−": "$-$",
}  # fmt: skip
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:.85em}td,th{border:1px solid #bbb;padding:.2em .5em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.wide{overflow-x:auto}"
)


def markdown(table: Table, *, level: int = 1) -> str:
    """GitHub's Markdown; ``level`` is that of the title."""
    parts = [f"{'#' * level} {table.title}", ""]
    for block in table.blocks:
        parts += [f"{'#' * (level + 1)} {block.title}", ""]
        parts += [*block.remarks, ""] if block.remarks else []
        header = [f"{group}: {name}" if group else name for group, names in block.groups for name in names]
        parts += [_line(header), "|" + " --- |" * len(header), *(_line(row) for row in block.rows), ""]
    return "\n".join(parts)


def latex(table: Table) -> str:
    """A ``table*`` a block, for a document with the package booktabs."""
    return "\n".join([f"% {tex(table.title)}", *(_latex_block(table, block) for block in table.blocks)])


def html(table: Table) -> str:
    """A page that needs nothing else."""
    body = "\n".join(_html_block(block) for block in table.blocks)
    title = escape(table.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def tex(text: str) -> str:
    """A text with LaTeX's special characters written out."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _latex_block(table: Table, block: Block) -> str:
    width = sum(len(names) for _, names in block.groups)
    top = " & ".join(rf"\multicolumn{{{len(names)}}}{{c}}{{{tex(group)}}}" for group, names in block.groups)
    names = " & ".join(tex(name) for _, group in block.groups for name in group)
    caption = tex(" ".join([f"{table.title}. {block.title}.", *block.remarks]))
    return "\n".join(
        [
            r"\begin{table*}\centering\footnotesize",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
            r"\toprule",
            rf"{top} \\",
            rf"{names} \\",
            r"\midrule",
            *(" & ".join(tex(cell) for cell in row) + r" \\" for row in block.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


def _html_block(block: Block) -> str:
    top = "".join(f'<th colspan="{len(names)}">{escape(group)}</th>' for group, names in block.groups)
    names = "".join(f"<th>{escape(name)}</th>" for _, group in block.groups for name in group)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    remarks = f"<p>{escape(' '.join(block.remarks))}</p>\n" if block.remarks else ""
    return (
        f'<h2>{escape(block.title)}</h2>\n{remarks}<div class="wide"><table><thead><tr>{top}</tr><tr>{names}</tr></thead>'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )
