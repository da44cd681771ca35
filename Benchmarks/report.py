#!/usr/bin/env python3
"""Draws the plots and refreshes the tables of RESULTS.md between its markers.

Usage: report.py RESULTS.json FOLDER     FOLDER has RESULTS.md and gets results.json and Plots/*.svg

Results of suites that this run left out are kept from FOLDER/results.json.
"""

import json
import os
import sys

from goals import goals
from plots import draw_all

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
PEER_FIRST = ("ResponseStore", "LMDBURLCache")


def merge(new, old):
    """The new rows, and the old ones of suites that were not run, unless one of both was a quick run."""
    suites = {row["suite"] for row in new["rows"]}
    if old and old["isQuick"] == new["isQuick"] and old["machine"] == new["machine"]:
        new["rows"] = [row for row in old["rows"] if row["suite"] not in suites] + new["rows"]
    return new


def number(value):
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def tables(rows):
    """One table for each suite: a line for each measure, scenario and peer, in the order in which they were measured."""
    text = []
    for suite in dict.fromkeys(row["suite"] for row in rows):
        text += [f"### {suite}", "", "| measure | what | who | median | unit | least to most |", "|---|---|---|--:|---|--:|"]
        previous = None
        for row in (row for row in rows if row["suite"] == suite):
            place = (row["measure"], row["scenario"])
            measure, scenario = place if place != previous else ("", "")
            previous = place
            who = f"**{row['peer']}**" if row["peer"].startswith(PEER_FIRST) else row["peer"]
            spread = "" if row["rounds"] == 1 else f"{number(row['least'])} to {number(row['most'])}"
            text.append(f"| {measure} | {scenario} | {who} | {number(row['median'])} | {row['unit']} | {spread} |")
        text.append("")
    return text


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, folder = sys.argv[1:]
    kept = os.path.join(folder, "results.json")
    with open(source, encoding="utf-8") as file:
        results = json.load(file)
    if os.path.exists(kept) and os.path.abspath(kept) != os.path.abspath(source):
        with open(kept, encoding="utf-8") as file:
            results = merge(results, json.load(file))
    with open(kept, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, sort_keys=True)
        file.write("\n")

    plots = os.path.join(folder, "Plots")
    os.makedirs(plots, exist_ok=True)
    names = draw_all(results["rows"], plots)

    text = [BEGIN, "", f"Measured on {results['date']}: {results['machine']}."]
    if results["isQuick"]:
        text.append("A quick run: small sizes, few rounds.")
    text += ["", "## Goals", "", "| goal | wanted | measured | |", "|---|--:|--:|---|"]
    # A suite that is run by itself says nothing of the goals of others.
    isWhole = {row["suite"] for row in results["rows"]} != {"scale"}
    for goal in (goal for goal in goals(results["rows"]) if isWhole or goal.verdict != "not measured"):
        text.append(f"| {goal.text} | {goal.wanted} | {goal.measured} | {goal.verdict} |")
    text += ["", "## Plots", ""] + [f"![{title}](Plots/{name})" for title, name in names]
    text += ["", "## All figures", ""] + tables(results["rows"]) + [END]
    path = os.path.join(folder, "RESULTS.md")
    with open(path, encoding="utf-8") as file:
        before, _, rest = file.read().partition(BEGIN)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + "\n".join(text) + rest.partition(END)[2])


main()
