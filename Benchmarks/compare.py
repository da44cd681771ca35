#!/usr/bin/env python3
"""Prints the figures of this library next to the record, and marks changes beyond the noise.

Usage: compare.py RESULTS.json RECORD.json

If the row of another implementation has the same metric and scenario, the figures of both runs are divided by it: their
rounds alternated, so the speed of the machine cancels out. The noise is the range of the middle half of the rounds. A
change is marked if these ranges do not overlap, and the medians differ by at least 5%. A row with fewer than five rounds
is not marked, because its noise is not known.
"""

import json
import sys

import labels

LEAST_ROUNDS = 5
LEAST_CHANGE = 0.05


def place(row):
    return row["suite"], row["measure"], row["scenario"]


def by_name(rows):
    return {(*place(row), row["peer"]): row for row in rows}


def figures(row, baseline):
    """Lower quartile, median and upper quartile, relative to the baseline's median if there is one."""
    unit = baseline["median"] if baseline else 1
    return [row[key] / unit for key in ("lowerQuartile", "median", "upperQuartile")]


def baseline_of(row, results, record):
    """Another implementation that both runs measured in the same rounds."""
    for other in results:
        if place(other) == place(row) and not labels.is_own(other["peer"]) and other["rounds"] == row["rounds"]:
            recorded = record.get((*place(other), other["peer"]))
            if recorded and recorded["median"] > 0 and other["median"] > 0:
                return other, recorded
    return None, None


def changes(results, record):
    """For each row of this library in both runs: the row, the baseline, the change of the median, and a mark."""
    recorded_rows = by_name(record)
    for row in results:
        recorded = recorded_rows.get((*place(row), row["peer"]))
        if not labels.is_own(row["peer"]) or not recorded or recorded["median"] == 0 or row["median"] == 0:
            continue
        baseline, recorded_baseline = baseline_of(row, results, recorded_rows)
        low, median, high = figures(row, baseline)
        recorded_low, recorded_median, recorded_high = figures(recorded, recorded_baseline)
        change = median / recorded_median - 1
        mark = ""
        if min(row["rounds"], recorded["rounds"]) >= LEAST_ROUNDS and abs(change) >= LEAST_CHANGE:
            if low > recorded_high or high < recorded_low:
                mark = "better" if (change < 0) == row["lessIsBetter"] else "WORSE"
        yield row, recorded, baseline, change, mark


def figure(row):
    factor, unit = labels.quantity(row)
    return f"{labels.number(row['median'] * factor)} {unit}"


def table(results, record):
    lines = [("Metric", "Scenario", "Implementation", "Now", "Recorded", "Change", "Relative to", "")]
    for row, recorded, baseline, change, mark in changes(results["rows"], record["rows"]):
        lines.append((
            labels.metric(row["measure"]), labels.scenario(row["scenario"]), labels.implementation(row["peer"]),
            figure(row), figure(recorded), f"{change:+.0%}",
            labels.implementation(baseline["peer"]) if baseline else "", mark))
    if len(lines) == 1:
        return "No row of this library is in both runs."
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results, record = [json.load(open(name, encoding="utf-8")) for name in sys.argv[1:]]
    print(f"\nCompared with the record of {record['date']}, commit {record['commit']}:\n")
    print(table(results, record))


if __name__ == "__main__":
    main()
