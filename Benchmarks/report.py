#!/usr/bin/env python3
"""Draws the charts and writes the tables of RESULTS.md between its markers.

Usage: report.py RESULTS.json FOLDER     FOLDER has RESULTS.md and gets results.json and Plots/*.svg

For the folder of this program, which has the record, also writes the figures that README, articles and notes quote.
"""

import json
import os
import sys

import labels
from figures import write_figures
from plots import draw_all, draw_growth
from targets import targets

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HERE = os.path.dirname(os.path.abspath(__file__))
# The chart of the article "Sizing", which shows the record.
GROWTH_CHART = os.path.join(HERE, "..", "Sources/LMDBURLCache/LMDBURLCache.docc/Resources/scale-growth.svg")


def table_row(*cells):
    # A bar in a cell would begin another one, also within code.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tables(rows):
    """One table for each suite: a line for each metric, scenario and implementation, in the order of measuring."""
    text = []
    measured = dict.fromkeys(row["suite"] for row in rows)
    for suite in [suite for suite in labels.SUITES if suite in measured] + list(measured.keys() - labels.SUITES.keys()):
        text += [f"### {labels.SUITES.get(suite, suite)}", ""]
        text += ["| Metric | Scenario | Implementation | Median | Unit | Min–max |", "|---|---|---|--:|---|--:|"]
        previous = None
        for row in (row for row in rows if row["suite"] == suite):
            place = (labels.metric(row["measure"]), labels.scenario(row["scenario"]))
            metric, scenario = place if place != previous else ("", "")
            previous = place
            name = labels.implementation(row["peer"])
            if labels.is_own(row["peer"]):
                name = f"**{name}**"
            factor, unit = labels.quantity(row)
            least, median, most = (labels.number(row[key] * factor) for key in ("least", "median", "most"))
            spread = "" if row["rounds"] == 1 else f"{least}–{most}"
            text.append(table_row(metric, scenario, name, median, unit, spread))
        text.append("")
    return text


def report(results, charts):
    """The generated part of RESULTS.md."""
    text = [
        BEGIN, "", f"Commit {results['commit']}, measured on {results['date']}: {results['machine']}. Before the run, "
        f"other programs used {labels.number(results['busyPercent'])}% of the processors."]
    if results["isQuick"]:
        text.append("A quick run: small sizes, few rounds.")
    text += ["", "## Targets", "", "| Metric | Scenario | Target | Measured | Met |", "|---|---|--:|--:|---|"]
    # Targets of suites that were not measured are left out.
    text += [table_row(*target) for target in targets(results["rows"]) if target.measured != "–"]
    text += ["", "## Charts", ""]
    for title, name in charts:
        text += [f"![{title}](Plots/{name})", ""]
    text += ["## All measurements", ""] + tables(results["rows"]) + [END]
    return "\n".join(text)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, folder = sys.argv[1:]
    kept = os.path.join(folder, "results.json")
    with open(source, encoding="utf-8") as file:
        results = json.load(file)
    if not results["rows"]:
        sys.exit(f"report: {source} has no row")
    with open(kept, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, sort_keys=True)
        file.write("\n")

    plots = os.path.join(folder, "Plots")
    os.makedirs(plots, exist_ok=True)
    charts = draw_all(results["rows"], plots)
    if os.path.abspath(folder) == HERE:
        draw_growth(results["rows"], GROWTH_CHART)
        write_figures(results["rows"])
    path = os.path.join(folder, "RESULTS.md")
    with open(path, encoding="utf-8") as file:
        before, _, rest = file.read().partition(BEGIN)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + report(results, charts) + rest.partition(END)[2])


main()
