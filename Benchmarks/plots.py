"""Draws the charts of RESULTS.md as SVG, with the standard library alone.

One chart answers one question. This library has a strong color, the other implementations are gray.
"""

import math
import os
from html import escape

from labels import entry_count, implementation, is_own

OWN, OWN_VARIANT, BASELINE, OTHER = "#c2410c", "#f2a679", "#475569", "#a8b3c2"
TEXT, MUTED, GRID = "#1f2937", "#5b6675", "#e3e7ec"
WIDTH = 860
# Lines need different grays and dashes, since they have no labels along their way.
OTHER_LINES = [("#475569", ""), ("#8593a6", "7 4"), ("#64748b", "2 4"), ("#a8b3c2", ""), ("#8593a6", "12 4 2 4")]


def time_text(microseconds):
    """A time with three digits, in the unit that people use for it."""
    for unit, factor in [("s", 1e6), ("ms", 1e3)]:
        if microseconds >= factor:
            return f"{three_digits(microseconds / factor)} {unit}"
    return f"{three_digits(microseconds)} µs"


def three_digits(value):
    if value <= 0:
        return "0"
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def microseconds_text(microseconds):
    return f"{three_digits(microseconds)} µs"


def milliseconds_text(microseconds):
    return f"{three_digits(microseconds / 1e3)} ms"


def rate_text(value):
    return three_digits(value)


MICROSECONDS = {"ns": 1e-3, "us": 1, "us/entry": 1, "ms": 1e3, "s": 1e6}


class Drawing:
    """Collects the elements of an SVG file."""

    def __init__(self, title, subtitle):
        self.title = title
        self.elements = []
        self.text(16, 32, title, size=19, weight="bold")
        self.text(16, 54, subtitle, size=14, color=MUTED)

    def text(self, x, y, text, size=14, color=TEXT, anchor="start", weight="normal"):
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, color=GRID, width=1.0):
        self.elements.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>')

    def add(self, element):
        self.elements.append(element)

    def write(self, path, height):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">')
        background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>'
        lines = [head, f"<title>{escape(self.title)}</title>", background, *self.elements, "</svg>"]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


SHORT = {
    "ResponseStore, until deleted": "ResponseStore, rows deleted",
    "LMDBURLCache, disk, response not asked for": "LMDBURLCache, disk, body only",
    "LMDBURLCache.data(for:)": "data(for:)",
    "LMDBURLCache.data(for:), over URLSession": "data(for:) over URLSession",
    "URLSession, Foundation URLCache": "URLSession, Foundation's URLCache",
    "URLSession, caching": "URLSession, LMDBURLCache",
}


def plain(peer):
    """A short label of an implementation, without Markdown."""
    return SHORT.get(peer, implementation(peer)).replace("`", "")


def color(peer, variants):
    if peer in variants:
        return OWN_VARIANT
    if is_own(peer):
        return OWN
    return BASELINE if peer.startswith(("raw C", "loop in C", "bare construction")) else OTHER


def draw_bars(path, title, subtitle, panels, text, variants=(), is_shared=False):
    """Horizontal bars from zero, a panel for each scenario.

    Each panel has its own scale unless `is_shared`. With its own scale, a bar that is far longer than others is cut,
    and marked as cut. `panels` has pairs of a heading and of rows (peer, value).
    """
    drawing = Drawing(title, subtitle + "; this library in orange")
    bar = 24
    left = 30 + max(text_width(plain(peer), is_own(peer)) for _, rows in panels for peer, _ in rows)
    span = WIDTH - left - 100
    y = 84.0
    for heading, rows in panels:
        limit = max(value for _, rows in panels for _, value in rows) if is_shared else scale_limit(rows)
        drawing.text(16, y + 10, heading, weight="bold")
        y += 22
        drawing.line(left, y - 2, left, y + bar * len(rows) + 2, color=MUTED)
        for peer, value in rows:
            is_cut = value > limit
            width = span if is_cut else max(span * value / limit, 1.5)
            weight = "bold" if is_own(peer) else "normal"
            drawing.text(left - 10, y + 16, plain(peer), anchor="end", weight=weight)
            drawing.add(
                f'<rect x="{left:.1f}" y="{y + 3:.1f}" width="{width:.1f}" height="{bar - 7}" '
                f'fill="{color(peer, variants)}"/>')
            if is_cut:
                x = left + width - 44
                slash = f"M {x:.1f} {y + bar - 2:.1f} l 8 -{bar - 3} h 7 l -8 {bar - 3} z"
                drawing.add(f'<path d="{slash}" fill="white"/>')
            drawing.text(left + width + 7, y + 16, text(value), weight=weight)
            y += bar
        y += 22
    drawing.write(path, y)


def text_width(text, is_bold):
    """An estimate for 14 px, on the wide side."""
    return len(text) * (8.5 if is_bold else 7.8)


def scale_limit(rows):
    """The value at the end of the scale: the largest one that is at most eight times the next smaller one."""
    values = sorted(value for _, value in rows)
    while len(values) > 2 and values[-1] > 8 * values[-2]:
        values.pop()
    return values[-1]


def draw_lines(path, title, subtitle, series):
    """A line for each implementation: times on a linear axis over the number of entries on a logarithmic one.

    `series` has pairs of a peer and of points (entries, microseconds). Implementations that take more than five times
    the largest time of this library do not fit, and are named below the axis.
    """
    own = max(value for peer, points in series if peer == "ResponseStore" for _, value in points)
    shown = [(peer, points) for peer, points in series if max(value for _, value in points) <= 5 * own]
    hidden = [(peer, points) for peer, points in series if (peer, points) not in shown]
    counts = sorted({count for _, points in shown for count, _ in points})
    step = tick_step(max(value for _, points in shown for _, value in points))
    top_value = step * math.ceil(max(value for _, points in shown for _, value in points) / step)
    drawing = Drawing(title, subtitle + "; this library in orange")
    left, right, top, bottom = 66, 252, 84, 424

    def x(count):
        return left + (WIDTH - left - right) * math.log10(count / counts[0]) / math.log10(counts[-1] / counts[0])

    def y(value):
        return bottom - (bottom - top) * value / top_value

    for tick in range(round(top_value / step) + 1):
        drawing.line(left, y(tick * step), WIDTH - right, y(tick * step))
        drawing.text(left - 10, y(tick * step) + 5, f"{tick * step:g} µs" if tick else "0", color=MUTED, anchor="end")
    for count in counts:
        drawing.line(x(count), bottom, x(count), bottom + 6, color=MUTED)
        drawing.text(x(count), bottom + 24, f"{count:,}", color=MUTED, anchor="middle")
    drawing.text((left + WIDTH - right) / 2, bottom + 48, "Entries in the store", anchor="middle", color=MUTED)

    grays = iter(OTHER_LINES * 3)
    places = label_places([y(points[-1][1]) for _, points in shown], gap=21)
    # This library's line comes last, so that it is above the others.
    order = sorted(range(len(shown)), key=lambda index: shown[index][0] == "ResponseStore")
    for index in order:
        peer, points = shown[index]
        is_own = peer == "ResponseStore"
        stroke, dash = (OWN, "") if is_own else next(grays)
        width = 4 if is_own else 2
        line = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in points)
        drawing.add(
            f'<polyline points="{line}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-dasharray="{dash}" '
            'stroke-linejoin="round"/>')
        for count, value in points:
            drawing.add(f'<circle cx="{x(count):.1f}" cy="{y(value):.1f}" r="{width + 0.5}" fill="{stroke}"/>')
        end, place = points[-1], places[index]
        drawing.line(x(end[0]) + 7, y(end[1]), x(counts[-1]) + 22, place, color=stroke)
        drawing.text(x(counts[-1]) + 27, place + 5, f"{plain(peer)}, {time_text(end[1])}",
                     color=OWN if is_own else TEXT, weight="bold" if is_own else "normal")
    at = bottom + 78
    for peer, points in hidden:
        values = [value for _, value in points]
        low, high = time_text(min(values)), time_text(max(values))
        entries = f" with {points[0][0]:,} entries" if len(points) == 1 else ""
        drawing.text(left, at, f"Off the scale: {plain(peer)}, {low if low == high else f'{low} to {high}'}{entries}",
                     color=MUTED)
        at += 22
    drawing.write(path, at)


def tick_step(largest):
    """A round distance for about five ticks."""
    power = 10 ** math.floor(math.log10(largest / 5))
    return next(step * power for step in (1, 2, 5, 10) if step * power * 5 >= largest)


def label_places(wanted, gap):
    """Vertical places near the wanted ones, at least a gap apart."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [wanted[index] for index in order]
    for _ in range(200):
        for index in range(1, len(places)):
            overlap = gap - (places[index] - places[index - 1])
            if overlap > 0:
                places[index - 1] -= overlap / 2
                places[index] += overlap / 2
    return {index: place for index, place in zip(order, places)}


def panels_of(rows, scale=lambda row: 1, heading=lambda row: row["scenario"], is_more_better=False):
    """Rows by heading: this library's first, then the others from the best."""
    groups = {}
    for row in rows:
        groups.setdefault(heading(row), []).append((row["peer"], row["median"] * scale(row)))
    order = lambda pair: (not is_own(pair[0]), -pair[1] if is_more_better else pair[1])
    return [(name, sorted(group, key=order)) for name, group in groups.items()]


def microseconds(row):
    return MICROSECONDS[row["unit"]]


def entries_heading(row):
    size, _, _ = row["scenario"].partition(" x ")
    return f"{size}, {entry_count(row['scenario']):,} entries"


def draw_reads(rows, path):
    peers = ("ResponseStore", "raw C, head then body", "RocksDB", "SQLite", "one file per entry", "Redis, Unix socket",
             "Foundation URLCache")
    series = {}
    for row in rows:
        is_wanted = row["suite"] == "reads" and row["measure"] == "hit" and row["scenario"].startswith("1 KB ")
        if is_wanted and row["peer"] in peers:
            series.setdefault(row["peer"], []).append((entry_count(row["scenario"]), row["median"] / 1e3))
    lines = [(peer, sorted(series[peer])) for peer in peers if peer in series]
    if "ResponseStore" not in series or len(series["ResponseStore"]) < 2:
        return None
    title = "Latency of a 1 KB hit by number of entries"
    draw_lines(path, title, "Median per hit from disk, one thread; lower is better", lines)
    return title


def draw_sessions(rows, path):
    headings = {"cachedResponse": "cachedResponse(for:)", "load": "Loading a response"}
    rows = [row for row in rows if row["suite"] == "sessions" and row["measure"] in headings]
    if not rows:
        return None
    rows = [row for row in rows if row["scenario"] == rows[-1]["scenario"]]
    title = "Latency of a hit through Foundation's types"
    entries = entries_heading(rows[0])
    panels = panels_of(rows, microseconds, lambda row: headings[row["measure"]])
    draw_bars(path, title, f"Median per hit, {entries}; lower is better", panels, microseconds_text,
              ("URLSession, caching",))
    return title


def draw_writes(rows, path):
    rows = [row for row in rows if row["suite"] == "writes" and row["measure"] == "durable store"]
    if not rows:
        return None
    title = "Durable write"
    panels = panels_of(rows, microseconds, entries_heading)
    draw_bars(path, title, "Median time per entry until it survives a power failure; lower is better", panels,
              microseconds_text)
    return title


def draw_purge(rows, path):
    shares = {"since, 1%": "1% of", "since, 50%": "50% of"}
    rows = [row for row in rows if row["suite"] == "purge" and row["measure"] in shares]
    if not rows:
        return None
    title = "Purge by date"
    panels = panels_of(
        rows, microseconds, lambda row: f"{shares[row['measure']]} {entry_count(row['scenario']):,} entries")
    subtitle = "Time until the call returns, or until rows are deleted; lower is better"
    draw_bars(path, title, subtitle, panels, milliseconds_text, ("ResponseStore, until deleted",))
    return title


def draw_server(rows, path):
    rows = [row for row in rows if row["suite"] == "server" and row["measure"] == "requests"]
    if not rows:
        return None
    title = "Requests per second, 95% hits"
    draw_bars(path, title, "By number of concurrent tasks, with an origin on the same machine; higher is better",
              panels_of(rows, is_more_better=True), rate_text,
              ("URLSession, caching", "LMDBURLCache.data(for:), over URLSession"), is_shared=True)
    return title


def draw_misses(rows, path):
    rows = [row for row in rows if row["suite"] == "misses" and row["measure"] == "misses"
            and row["scenario"].endswith(", 11 KB")]
    if not rows:
        return None
    title = "Misses per second by number of concurrent callers"
    subtitle = "11 KB; only data(for:) stores the responses; higher is better"
    panels = panels_of(rows, heading=lambda row: row["scenario"].removesuffix(", 11 KB"), is_more_better=True)
    draw_bars(path, title, subtitle, panels, rate_text, ("LMDBURLCache.data(for:), over URLSession",), is_shared=True)
    return title


def draw_scale(rows, path):
    headings = {
        "stores while filling, last million": "While filling",
        "stores when full": "With a full disk: each write evicts",
    }
    rows = [row for row in rows if row["suite"] == "scale" and row["measure"] in headings]
    if not rows:
        return None
    title = "Writes per second with many entries"
    draw_bars(path, title, f"{entries_heading(rows[0])}; higher is better",
              panels_of(rows, heading=lambda row: headings[row["measure"]], is_more_better=True), rate_text,
              is_shared=True)
    return title


GROWTH = [
    ("lookup when full, p50", "lookup"),
    ("stores when full", "write with a full disk"),
    ("purge of a tenth, by date: returns", "purge call"),
    ("open after kill -9, cold", "opening after kill -9"),
    ("urlcache stats, cold", "urlcache stats"),
    ("purge of a tenth, by date: deleted", "purge of 10% by date, until deleted"),
    ("purge of a tenth, by host: deleted", "purge of 10% by host, until deleted"),
    ("purge of everything: deleted", "purge of everything, until deleted"),
    ("urlcache verify, cold", "urlcache verify"),
]


def draw_growth(rows, path):
    """Times of this library on two logarithmic axes: by the number of entries.

    Lines that grow as fast as the number of entries are orange, the others gray.
    """
    series = []
    for measure, label in GROWTH:
        own = [row for row in rows if row["suite"] == "scale" and row["measure"] == measure
               and row["peer"] == "ResponseStore" and row["median"] > 0]
        value = (lambda row: 1e6 / row["median"]) if measure == "stores when full" else (
            lambda row: row["median"] * microseconds(row))
        series.append((label, sorted((entry_count(row["scenario"]), value(row)) for row in own)))
    counts = sorted({count for _, points in series for count, _ in points})
    series = [(label, points) for label, points in series if len(points) == len(counts)]
    if len(counts) < 2 or not series:
        return None
    title = "What grows with the number of entries"
    drawing = Drawing(title, "Entries of 1 KB, logarithmic axes; orange grows with the number of entries")
    left, right, top, bottom = 80, 330, 84, 504
    low = math.floor(math.log10(min(value for _, points in series for _, value in points)))
    high = math.ceil(math.log10(max(value for _, points in series for _, value in points)))

    def x(count):
        return left + (WIDTH - left - right) * math.log10(count / counts[0]) / math.log10(counts[-1] / counts[0])

    def y(value):
        return bottom - (bottom - top) * (math.log10(value) - low) / (high - low)

    for power in range(low, high + 1):
        drawing.line(left, y(10 ** power), WIDTH - right, y(10 ** power))
        drawing.text(left - 10, y(10 ** power) + 5, time_text(10 ** power), color=MUTED, anchor="end")
    for count in counts:
        drawing.line(x(count), bottom, x(count), bottom + 6, color=MUTED)
        drawing.text(x(count), bottom + 24, f"{count:,}", color=MUTED, anchor="middle")
    drawing.text((left + WIDTH - right) / 2, bottom + 48, "Entries in the store", anchor="middle", color=MUTED)
    places = label_places([y(points[-1][1]) for _, points in series], gap=21)
    for index, (label, points) in enumerate(series):
        # A line of slope 1 multiplies its time by as much as the number of entries.
        grows = points[-1][1] / points[0][1] > (counts[-1] / counts[0]) ** 0.5
        stroke = OWN if grows else BASELINE
        line = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in points)
        drawing.add(f'<polyline points="{line}" fill="none" stroke="{stroke}" stroke-width="2.5"/>')
        for count, value in points:
            drawing.add(f'<circle cx="{x(count):.1f}" cy="{y(value):.1f}" r="3.5" fill="{stroke}"/>')
        end, place = points[-1], places[index]
        drawing.line(x(end[0]) + 7, y(end[1]), x(counts[-1]) + 22, place, color=stroke)
        drawing.text(x(counts[-1]) + 27, place + 5, f"{label}, {time_text(end[1])}", color=stroke)
    drawing.write(path, bottom + 66)
    return title


CHARTS = {
    "reads": draw_reads, "sessions": draw_sessions, "writes": draw_writes, "purge": draw_purge, "scale": draw_scale,
    "server": draw_server, "misses": draw_misses,
}


def draw_all(rows, folder):
    """Draws the charts that the rows have figures for; returns pairs of a title and a file name."""
    drawn = []
    for name, draw in CHARTS.items():
        title = draw([row for row in rows if row["median"] > 0], os.path.join(folder, name + ".svg"))
        if title:
            drawn.append((title, name + ".svg"))
    return drawn
