"""Plots as SVG, with nothing but the standard library: grouped bars on a logarithmic axis."""

import math
import os
from html import escape

COLOURS = ["#1b6ca8", "#e07b39", "#5b9a4f", "#b1487a", "#8c6bb1", "#7f7f7f", "#c7a33a", "#3aa6a0", "#555555"]
SCALE_RATES = ("stores while filling, last tenth", "stores when full")
WIDTH, LEFT, RIGHT, TOP, BAR = 860, 250, 90, 56, 18


def draw(rows, title, path):
    """Bars for each peer, grouped by scenario."""
    groups = {}
    for row in rows:
        groups.setdefault(row["scenario"], []).append(row)
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    values = [row["median"] for row in rows if row["median"] > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    height = TOP + sum(BAR * len(group) + 30 for group in groups.values()) + 30

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(max(value, 10**low)) - low) / (high - low)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        at = x(10**power)
        lines.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{height - 28}" stroke="#ddd"/>')
        lines.append(f'<text x="{at:.1f}" y="{height - 10}" text-anchor="middle" fill="#555">{10**power:,g}</text>')
    y = TOP
    for scenario, group in groups.items():
        lines.append(f'<text x="12" y="{y + 10}" font-weight="bold">{escape(scenario)}</text>')
        y += 18
        for row in group:
            colour = COLOURS[peers.index(row["peer"]) % len(COLOURS)]
            width = max(1, x(row["median"]) - LEFT)
            lines.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(row["peer"])}</text>')
            lines.append(f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{BAR - 5}" fill="{colour}"/>')
            lines.append(f'<text x="{LEFT + width + 5:.1f}" y="{y + 12}">{row["median"]:,.3g}</text>')
            y += BAR
        y += 12
    lines.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def draw_all(rows, folder):
    """All plots; returns their titles and names."""
    wanted = [
        ("reads", lambda row: row["suite"] == "reads" and row["measure"] == "hit", "A hit, nanoseconds"),
        ("sessions", lambda row: row["suite"] == "sessions" and row["unit"] == "ns", "As Foundation sees it, nanoseconds"),
        ("writes", lambda row: row["measure"] == "durable store", "A durable store, microseconds"),
        ("purge", lambda row: row["measure"] in ("since, 1 %", "since, 50 %"), "A purge since a date, milliseconds"),
        ("scale", lambda row: row["suite"] == "scale" and row["measure"] in SCALE_RATES,
         "Stores a second: while filling, and on a full disk"),
        ("server", lambda row: row["suite"] == "server" and row["measure"] == "requests", "Requests a second, 95 % hits"),
    ]
    names = []
    for name, belongs, title in wanted:
        chosen = [dict(row) for row in rows if belongs(row) and row["median"] > 0]
        if not chosen:
            continue
        if name in ("sessions", "purge", "scale"):
            for row in chosen:
                row["scenario"] = f"{row['measure']}, {row['scenario']}"
        draw(chosen, title, os.path.join(folder, name + ".svg"))
        names.append((title, name + ".svg"))
    return names
