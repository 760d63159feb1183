"""A result table as Markdown, LaTeX (booktabs) or CSV; its entries in HTML."""

import csv
import html
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedray.analysis.data.metrics import name_metrics
from fedray.analysis.tables.published import BEST
from fedray.analysis.tables.result_table import LEGEND, Key, ResultTable
from fedray.common.entry import format_json
from fedray.common.errors import UserError, escape, truncate_repr, warn_once
from fedray.common.output import escape_markdown, format_grid


def to_markdown(table: ResultTable) -> str:
    """Format as GitHub's Markdown; underlining uses HTML's <u>, which Markdown lacks."""
    marks = {1: "**{}**", 2: "<u>{}</u>"}
    names = {name: f"{escape_markdown(name)} {note}".strip() for name, note in table.seeds_notes.items()}
    grid = [["", *(names[column] for column in table.columns)]]
    for row in table.rows:
        grid.append([names[row], *(_fill(table, (row, one), str, marks) for one in table.columns)])
    notes = (f"- {' '.join(note.split())}" for note in table.notes)  # a failure's message may have lines
    return "\n".join([f"**{escape_markdown(table.title)}**", "", *format_grid(grid), "", *notes]) + "\n"


NARROW = 2
"""Maximum number of columns of entries that fit a column of a two-column paper."""


def to_latex(table: ResultTable) -> str:
    """Format as a booktabs table; its notes are comments.

    One with more than NARROW columns of entries is a `table*`, which in one column is the same as `table`.
    Rows of a method with other options (`fedsam ρ=0.05`) have them in a column of their own, and a space sets methods
    apart; columns of a split with other options stand below its name. Unless the user has given one, the caption is the
    metric and what ± is. Raises UserError if LaTeX does not accept the label.
    """
    if not re.fullmatch(r"[\w:./+*-]*", table.label, re.ASCII):
        raise UserError(f"--label: found {truncate_repr(table.label)}; letters, digits and : . / + * - _ are allowed")

    def cell(key: Key) -> str:
        text = _fill(table, key, escape_tex, {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"})
        return re.sub(r"(^|[(\[{,] ?)-(?=\d)", r"\1$-$", text)  # a sign; a mere hyphen is shorter

    heads, tops = _split_names(table.rows), _split_names(table.columns, table.is_joined)
    title = table.title.partition(": ")[2] or table.title  # without the sweep's name
    said = [note.partition(f"; {LEGEND}")[0] for note in table.notes[:1]]
    said += table.captioned
    lows = [
        f"{top[-1]} {table.seeds_notes[column]}".strip() for top, column in zip(tops[1:], table.columns, strict=True)
    ]
    environment = "table*" if len(table.columns) > NARROW else "table"
    lines = [
        rf"\begin{{{environment}}}",
        r"\centering",
        rf"\caption{{{table.caption or escape_tex('; '.join([title[:1].upper() + title[1:], *said]))}}}",
        *([rf"\label{{{table.label}}}"] if table.label else []),
        rf"\begin{{tabular}}{{{'l' * len(heads[0])}{'c' * len(table.columns)}}}",
        r"\toprule",
        *_write_groups(tops, len(heads[0])),
        " & ".join(map(escape_tex, [*heads[0], *lows])) + r" \\",
        r"\midrule",
    ]
    apart = len(heads[0]) > 1
    for row, (method, *options), before in zip(table.rows, heads[1:], heads, strict=False):
        begins = method != before[0]
        if begins and before is not heads[0] and (apart or row == BEST):
            lines.append(r"\midrule" if row == BEST else r"\addlinespace")
        first = re.sub(r"^[\[*]", r"{\g<0>}", escape_tex(method)) if begins or not apart else ""
        names = [first, *map(escape_tex, options)]
        place = -1 if any(options) or not first else 0  # a method of several rows is named in the first
        names[place] = " ".join(filter(None, [names[place], table.seeds_notes[row]]))
        lines.append(" & ".join([*names, *(cell((row, column)) for column in table.columns)]) + r" \\")
    notes = (" ".join(note.split()) for note in table.notes)  # a failure's message may have several lines
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in notes), rf"\end{{{environment}}}"]
    return "\n".join(lines) + "\n"


def _write_groups(tops: Sequence[Sequence[str]], before: int) -> list[str]:
    """Return the line above a header that names what neighbouring columns share, and its rules; none if they do not."""
    if len(tops[0]) == 1:
        return []
    names, rules, first = [""] * (before - 1), list[str](), before + 1
    for group, columns in groupby(tops[1:], key=lambda top: top[0]):
        options = [option for _, option in columns]
        name = " ".join(filter(None, [group, tops[0][1] if any(options) else ""]))
        names.append(rf"\multicolumn{{{len(options)}}}{{c}}{{{escape_tex(name)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + len(options) - 1}}}")
        first += len(options)
    return [" & ".join(["", *names]) + r" \\", " ".join(rules)]


def _split_names(labels: Sequence[str], are_joined: bool = False) -> list[list[str]]:
    """Return the header and the labels, in two parts, method and options, if a method has several of them.

    If all have the same option, the header names it: `ρ`. Columns of several metrics have these as their second part.
    """
    if are_joined:
        of_metrics = [label.rpartition(": ") for label in labels]
        short = name_metrics(dict.fromkeys(metric for _, _, metric in of_metrics))
        return [["", ""], *([setting, short[metric]] for setting, _, metric in of_metrics)]
    for options in (" [^ =]+=[^ =]+", "(?: [^ =]+=[^ =]+)*"):  # `dirichlet α=0.1` of `dirichlet α=0.1 rounds=30`
        parts = [re.fullmatch(rf"(.*?)({options})", label, re.DOTALL) for label in labels]
        split = [(part[1], part[2].strip()) for part in parts if part]
        methods = [method for method, _ in split]
        if len(split) == len(labels) and "" not in methods and len({*methods}) < len(labels):
            break
    else:
        return [[""], *([label] for label in labels)]
    names = {options.partition("=")[0] for _, options in split if options}
    if len(names) == 1 and not any(" " in options for _, options in split):
        split = [(method, options.partition("=")[2]) for method, options in split]
    else:
        names = {""}
    return [["", *names], *map(list, split)]


def to_csv(table: ResultTable) -> str:
    """Format the table as CSV, one line per entry: row, column, mean, std, seeds, the number of seeds by other outcome.

    Then, if requested, `delta` or, for rounds, `speedup`, and the paper's `published`, `published_std`, `difference`.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = {entry.is_round for entry in table.entries.values()} if table.reference else set()
    change = [name for name, is_round in (("delta", False), ("speedup", True)) if is_round in kinds]
    paper = ["published", "published_std", "difference"] if table.paper else []
    writer.writerow(["row", "column", "mean", "std", "seeds", "others", *change, *paper])
    for (row, column), entry in table.entries.items():
        others = " ".join(f"{status}={n}" for status, n in sorted(entry.others.items()))
        numbers = [entry.change if (name == "speedup") == entry.is_round else None for name in change]
        if paper:
            printed = (entry.printed.value, entry.printed.std) if entry.printed else (None, None)
            numbers += [*printed, entry.difference]
        line = [*map(_protect_text, (row, column)), *map(_format_number, (entry.mean, entry.std)), entry.seeds, others]
        writer.writerow([*line, *map(_format_number, numbers)])
    return out.getvalue()


def format_run_by_run(table: pd.DataFrame) -> str:
    """Format rows of single runs or clients as CSV, numbers with all their digits."""
    text: str = table.rename(columns=_protect_text).map(_protect_text).to_csv(index=False, lineterminator="\n")
    return text


def _protect_text(value: Any) -> Any:
    """Return a value for CSV: spreadsheets compute a text that begins like a formula, so it gets an apostrophe."""
    formula = isinstance(value, str) and re.match(r"[=+@\t\r-](?![\d.]+(e[+-]?\d+)?$)", value)
    return f"'{value}" if formula else value


def to_html(table: ResultTable, key: Key) -> Markup:
    """Format one entry in HTML, escaped; empty if the table has none."""
    text = _fill(table, key, html.escape, {1: "<strong>{}</strong>", 2: "<u>{}</u>"})
    return Markup(text)  # noqa: S704 (all foreign text is escaped above)


def to_json(table: ResultTable) -> str:
    """Format as one JSON object: title, notes and entries, whose numbers have all their digits."""
    entries = [
        {"row": row, "column": column, "mean": one.mean, "std": one.std, "seeds": one.seeds, "others": one.others}
        | ({"change": one.change} if table.reference else {})
        | ({"published": one.printed and one.printed.value} if table.paper else {})
        for (row, column), one in table.entries.items()
    ]
    return format_json({"title": table.title, "entries": entries, "notes": table.notes}) + "\n"


SUFFIXES = {"markdown": ".md", "latex": ".tex", "csv": ".csv", "json": ".json"}
FORMATS: dict[str, Callable[[ResultTable], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}


def _fill(table: ResultTable, key: Key, written: Callable[[str], str], emphasis: dict[int, str]) -> str:
    entry = table.entries.get(key)
    if entry is None:
        return written("-") if key[0] == BEST else ""
    value = emphasis.get(table.ranks.get(key, 0), "{}").format(
        written(format_value(entry.mean, entry.std, entry.digits))
    )
    change, printed = "", ""
    if entry.change is not None and key[0] != table.reference:
        change = f"({entry.change:.2f}×)" if entry.is_round else f"({entry.change:+z.{entry.digits}f})"
    if entry.printed is not None:
        difference = "" if entry.difference is None else f", {entry.difference:+z.{entry.digits}f}"
        printed = f"[{format_value(entry.printed.value, entry.printed.std, entry.digits)}{difference}]"
    seeds = "" if any(table.seeds_notes[name] for name in key) else entry.seeds_note
    return " ".join(filter(None, (value, *map(written, (change, printed, seeds, entry.note)))))


def format_value(mean: float | None, std: float | None, digits: int) -> str:
    """Format `91.00 ± 1.41`; `-` without a mean."""
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


SYMBOLS = r"""
α \alpha β \beta γ \gamma δ \delta ε \varepsilon ζ \zeta η \eta θ \theta ι \iota κ \kappa λ \lambda μ \mu ν \nu ξ \xi
ο o π \pi ρ \rho ς \varsigma σ \sigma τ \tau υ \upsilon φ \varphi χ \chi ψ \psi ω \omega ϵ \epsilon ϑ \vartheta ϕ \phi
ϖ \varpi ϱ \varrho Α A Β B Γ \Gamma Δ \Delta Ε E Ζ Z Η H Θ \Theta Ι I Κ K Λ \Lambda Μ M Ν N Ξ \Xi Ο O Π \Pi Ρ P
Σ \Sigma Τ T Υ \Upsilon Φ \Phi Χ X Ψ \Psi Ω \Omega µ {\mu} < < > > | | ± \pm × \times · \cdot − - ° ^{\circ} ¬ \neg
ℓ \ell ≥ \geq ≤ \leq ≠ \neq ≈ \approx ≡ \equiv ∼ \sim ∝ \propto ∞ \infty ∇ \nabla ∂ \partial ∑ \sum ∏ \prod √ \surd
∈ \in ∉ \notin ∥ \parallel ‖ \| → \rightarrow ← \leftarrow ↔ \leftrightarrow ⇒ \Rightarrow
"""
"""Characters that LaTeX prints in mathematics, each before its command."""
TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "…": r"\textellipsis{}",
    **{sign: f"${command}$" for sign, command in re.findall(r"(\S)\s(\S+)", SYMBOLS)},
}
"""Character -> what LaTeX prints as that character."""


def escape_tex(text: str) -> str:
    """Return a text as LaTeX prints it; warn of characters for which no command is known."""
    if text == "-":
        return "--"
    escaped = "".join(TEX.get(sign) or _write_other(sign) for sign in unicodedata.normalize("NFC", escape(text)))
    return re.sub(r"(?<=-)(?=-)|(?<=')(?=')", "{}", escaped)  # two would be printed as one sign


def _write_other(sign: str) -> str:
    """Return raised and lowered characters as such; ASCII and letters of Latin with an accent stay as they are."""
    kind, _, base = unicodedata.decomposition(sign).partition("> ")
    if kind in ("<sub", "<super") and len(base) == 4:
        inner = TEX.get(chr(int(base, 16)), chr(int(base, 16))).strip("$")
        return f"${'_' if kind == '<sub' else '^'}{{{inner}}}$"
    if not unicodedata.normalize("NFD", sign)[0].isascii() and sign not in "ßæœøłÆŒØŁ":
        name = unicodedata.name(sign, "without a name")
        warn_once(
            f"LaTeX: {sign} (U+{ord(sign):04X}, {name}) has no command here; LuaLaTeX prints it if the font has it"
        )
    return sign
