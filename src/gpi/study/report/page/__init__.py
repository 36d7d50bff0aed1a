"""A report as one HTML file that needs nothing else: it forbids the browser to fetch anything.

Everything is there without JavaScript; the script adds filters, values under the pointer, sorting and a choice of
colours.
"""

from __future__ import annotations

from pathlib import Path

from gpi.study.report.blocks import Chart, Report
from gpi.study.report.looks import COLOURS, DASHES, Looks, looks_of
from gpi.study.report.page.bars import rows
from gpi.study.report.page.layout import Block, Facets, Placed, PlacedSection, arranged, charts_in, facets_of, sheets
from gpi.study.report.page.lines import plot
from gpi.study.report.page.tables import table, tally
from gpi.study.report.text import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
HERE = Path(__file__).parent
FACETS = {"algorithm": "Algorithm", "kappa": "Kappa", "task": "Task"}


class Drawing:
    """What all parts of a page share: looks, facets, and whether tables and figures lie beside it as files."""

    def __init__(self, report: Report, beside: bool):
        """Read the report."""
        self.looks: Looks = looks_of(report)
        self.facets: Facets = facets_of(report)
        self.sheets = {group[0].id: name for name, _, group in sheets(report)} if beside else {}
        self.beside = beside


def page(report: Report, beside: bool = False) -> str:
    """Return a report as one HTML file; `beside` says that its tables and figures lie next to it, to link to."""
    sections, drawing = arranged(report), Drawing(report, beside)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(report.title)}</title>
<style>
{style()}
</style>
</head>
<body>
<a class="skip" href="#Main">Skip to the report</a>
<div class="layout">
<aside class="side">
{contents(report, sections)}
{filters(drawing.facets)}
</aside>
<main id="Main">
<header><h1>{escape(report.title)}</h1>
<div class="lead">{paragraphs(report.lead)}</div></header>
{"".join(section_of(section, drawing) for section in sections)}
{repeat(report)}
</main>
</div>
<div id="Tip" role="status" hidden></div>
<script>
{(HERE / "script.js").read_text()}</script>
</body>
</html>
"""


def style() -> str:
    """Return the style sheet, with the colours of lines on white and on black, white again on paper, and dashes."""
    light, dark = ("".join(f"--c{i}:{colour[kind]};" for i, colour in enumerate(COLOURS)) for kind in (0, 1))
    uses = "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(len(COLOURS)))
    dashes = "".join(f".d{i}{{--d:{' '.join(f'{x:g}' for x in dash) or 'none'}}}" for i, dash in enumerate(DASHES))
    sheet = (HERE / "style.css").read_text()
    day, night = (sheet.partition(f"/* {name} */")[2].partition("/* end")[0] for name in ("light", "dark"))
    return f"""{sheet}
:root{{{light}}}
:root[data-theme=dark]{{{dark}}}
@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{night}{dark}}}}}
@media print{{:root:root:root{{{day}{light}}}}}
{uses}
{dashes}"""


def paragraphs(texts: tuple[str, ...]) -> str:
    """Return texts as paragraphs."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts if text)


def contents(report: Report, sections: list[PlacedSection]) -> str:
    """Return the table of contents."""

    def entry(section: PlacedSection) -> str:
        singles = [group[0] for group in section.groups if len(group) == 1]
        inner = "".join(f'<li><a href="#{part.id}">{escape(part.block.title)}</a></li>' for part in singles)
        below = f"<ol>{inner}</ol>" if len(singles) > 1 else ""
        return f'<li><a href="#{section.id}">{escape(section.section.title)}</a>{below}</li>'

    last = '<li><a href="#Repeat">Repeat it</a></li>' if report.commands or report.versions else ""
    return f"""<nav class="contents" aria-label="Contents"><div class="top"><a href="#Main">{escape(report.title)}</a>
<button type="button" id="Theme" title="light or dark" aria-label="Switch between light and dark"></button></div>
<ol>{"".join(map(entry, sections))}{last}</ol></nav>"""


def filters(facets: Facets) -> str:
    """Return the filters, which show themselves if the script runs."""
    sets = "".join(filter_of(key, title, getattr(facets, key)) for key, title in FACETS.items())
    return f"""<form id="Filters" class="filters" aria-label="Filters" autocomplete="off"><details>
<summary><span>Filters</span> <span id="Shown" role="status"></span></summary>
<div class="sets">{sets}
<fieldset class="chips"><legend>Draw</legend><div class="options">
<label><input type="checkbox" checked data-show="seeds"><span>seeds</span></label>
<label><input type="checkbox" checked data-show="bands"><span>intervals</span></label></div></fieldset>
<p class="hint">Filters only hide rows, lines and charts; statistics are not recomputed. The address of this page
keeps them.</p></div></details></form>"""


def filter_of(key: str, title: str, values: tuple[str, ...]) -> str:
    """Return the filter by one facet; nothing if there is nothing to choose."""
    if len(values) < 2:
        return ""
    kind = "list" if key == "task" else "chips"
    only = '<button type="button" class="only">only</button>' if key == "task" else ""
    options = "".join(
        f'<div class="option"><label><input type="checkbox" checked data-place="{place}" value="{escape(value)}">'
        f"<span>{escape(value)}</span></label>{only}</div>"
        for place, value in enumerate(values)
    )
    return (
        f'<fieldset class="{kind}" data-key="{key}"><legend>{title} <span class="count"></span>'
        '<span class="both"><button type="button" data-set="all">all</button>'
        f'<button type="button" data-set="none">none</button></span></legend>'
        f'<div class="options">{options}</div></fieldset>\n'
    )


def section_of(placed: PlacedSection, drawing: Drawing) -> str:
    """Return a section with all its parts."""
    parts = "\n".join(
        single(group[0], drawing) if len(group) == 1 else multiples(group, drawing) for group in placed.groups
    )
    return f"""<section id="{placed.id}" aria-labelledby="T.{placed.id}">
<h2 id="T.{placed.id}">{heading(placed.id, placed.section.title)}</h2>
<div class="text">{paragraphs(placed.section.text)}</div>
{parts}
</section>
"""


def heading(place: str, title: str) -> str:
    """Return a heading that can be linked to."""
    return f'{escape(title)} <a class="link" href="#{place}" aria-label="Link to {escape(title)}">#</a>'


def single(part: Placed, drawing: Drawing) -> str:
    """Return one table or chart with its caption."""
    block, facets = part.block, drawing.facets
    mark = facets.mark(block.tags) if isinstance(block, Chart) else ""
    if isinstance(block, Chart):
        kind, above = "chart bars" if block.names else "chart large", legend((block,), drawing)
        body = axes(block) + chart_body(block, drawing)
    else:
        kind, above, body = "table", tally(block), table(block, f"T.{part.id}", facets)
    return f"""<figure class="{kind}" id="{part.id}"{mark}>
<figcaption><h3 id="T.{part.id}">{heading(part.id, block.title)}</h3>{above}</figcaption>
{body}
<div class="foot">{note_of(block)}{links(part, drawing)}</div></figure>"""


def note_of(block: Block) -> str:
    """Return the definitions that a reader needs beside a part."""
    return f'<p class="note">{escape(block.note)}</p>' if block.note else ""


def chart_body(chart: Chart, drawing: Drawing) -> str:
    """Return what a chart draws."""
    if chart.names:
        return rows(chart, drawing.looks, drawing.facets)
    return plot(chart, drawing.looks.lines, drawing.facets)


def axes(chart: Chart) -> str:
    """Return what a chart's axes mean."""
    over = escape(chart.y_label) if chart.names else f"{escape(chart.y_label)} <i>against</i> {escape(chart.x_label)}"
    return f'<p class="axes">{over}</p>'


def legend(charts: tuple[Chart, ...], drawing: Drawing) -> str:
    """Return the legend of some charts; nothing for a lone series."""
    lines = {line.label: line for chart in charts for line in chart.lines}
    if len(lines) < 2:
        return ""
    looks = drawing.looks.of(charts[0])
    kind = "series" if charts[0].names else "lines"
    items = "".join(
        f'<li class="{looks[label].name}" data-label="{escape(label)}"{drawing.facets.mark(line.tags)}>'
        f'<svg width="26" height="10" aria-hidden="true"><path d="M1 5h24"/></svg>{escape(label)}</li>'
        for label, line in lines.items()
    )
    return f'<ul class="legend {kind}" aria-label="Legend">{items}</ul>'


def multiples(group: tuple[Placed, ...], drawing: Drawing) -> str:
    """Return charts drawn small, side by side, under one legend."""
    charts = charts_in(group)
    same = len({chart.note for chart in charts}) == 1
    small = "\n".join(
        f'<figure class="chart small" id="{part.id}"{drawing.facets.mark(chart.tags)}><figcaption>'
        f'<h3 id="T.{part.id}">{heading(part.id, chart.title)}</h3>{links(part, drawing)}</figcaption>\n'
        f"{chart_body(chart, drawing)}{'' if same else note_of(chart)}</figure>"
        for part, chart in zip(group, charts, strict=True)
    )
    return f"""<div class="multiples"><div class="above">{legend(charts, drawing)}</div>
{axes(charts[0])}
<div class="grid">
{small}
</div>{note_of(charts[0]) if same else ""}<p class="files">
<span class="counted" data-what="charts"></span> {sheet_links(drawing.sheets.get(group[0].id))}</p></div>"""


def sheet_links(name: str | None) -> str:
    """Return links to the sheet of charts drawn small, if it lies beside the page."""
    kinds = ("png", "svg") if name else ()
    return " ".join(f'<a href="figures/{name}.{kind}">all on one sheet, {kind.upper()}</a>' for kind in kinds)


def links(part: Placed, drawing: Drawing) -> str:
    """Return links to the files of a part, if they lie beside the page; a table says how many rows are shown."""
    chart, title = isinstance(part.block, Chart), escape(part.block.title)
    counts = "" if chart else '<span class="counted" data-what="rows"></span>'
    if not drawing.beside:
        return f'<p class="files">{counts}</p>' if counts else ""
    kinds = (("figures", "png"), ("figures", "svg")) if chart else (("tables", "csv"),)
    found = " ".join(
        f'<a href="{folder}/{part.file}.{kind}" aria-label="{title} as {kind.upper()}">{kind.upper()}</a>'
        for folder, kind in kinds
    )
    return f'<p class="files">{counts} {found}</p>'


def repeat(report: Report) -> str:
    """Return the commands and versions that repeat everything."""
    if not report.commands and not report.versions:
        return ""
    commands = "".join(f"<code>{escape(line)}</code>" for line in report.commands)
    versions = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.versions.items()
    )
    return f"""<section id="Repeat" aria-labelledby="T.Repeat"><h2 id="T.Repeat">{heading("Repeat", "Repeat it")}</h2>
<pre class="commands" tabindex="0">{commands}</pre><dl class="versions">{versions}</dl></section>"""
