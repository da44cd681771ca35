#!/usr/bin/env python3
"""Compares the allocations and instructions of the hot calls with the committed thresholds.

Usage: guard.py HOT-PATH-BUDGET-EXECUTABLE THRESHOLDS.json [--update]

Allocations may rise by 2%, which is less than one in most calls. Instructions may rise by 10%, for other compilers and
C libraries. Some calls also have a maximum ratio to another one. The times of other programs do not count. But on a busy
machine a task changes threads more often, which adds instructions. So if a count is above its maximum, all are counted
again, up to three times, and the least of each call is compared.
--update writes the counts as the new thresholds.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

CALLS = 1000  # How often HotPathBudget repeats each call.
ATTEMPTS = 3
INSTRUCTION_TOLERANCE = 1.10
ALLOCATION_TOLERANCE = 1.02
# Of a call and the one that it is compared with: the maximum ratio of their instructions. malloc's share differs between
# builds, so the ratio may be 2% higher.
RATIOS = [
    ("data(for:), memory, QUERY of 1 KB", "data(for:), memory", 1.8),
    ("data(for:), memory, No-Vary-Search", "data(for:), memory, the same by its URL", 1.45),
    ("data(for:), memory, the only user", "data(for:), memory", 2.0),
    ("respond(to:over:), memory", "data(for:), memory", 0.51),
    # The time since the responses were stored differs, and so does how often their Age is written.
    ("data(for:), memory, one of 5,000 users", "data(for:), memory, the only user", 1.15),
    # Foundation's own work is the same in all versions. So these do not rise when a threshold is raised.
    ("data(for:), memory, 11 KB", "bare construction", 0.21),
    ("data(for:), disk, 11 KB", "bare construction", 1.6),
]
# Without this, the order of Foundation's dictionaries differs between processes, and so do a few allocations.
ENVIRONMENT = {**os.environ, "SWIFT_DETERMINISTIC_HASHING": "1"}


def count_allocations(executable):
    lines = subprocess.run(
        [executable], check=True, capture_output=True, text=True, env=ENVIRONMENT
    ).stdout.splitlines()
    return {name: round(float(count), 1) for name, count in (line.split("\t") for line in lines)}


def count_instructions(executable):
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", executable]
        subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
        for path in glob.glob(folder + "/out.*"):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
            total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
            if name and total:
                counts[name.group(1)] = round(int(total.group(1)) / CALLS)
    return counts


def count(executable):
    # Hits of a cache in a fleet need a server when the cache opens.
    with tempfile.TemporaryDirectory() as folder:
        ENVIRONMENT["GUARD_REDIS"] = folder + "/s"
        command = ["redis-server", "--port", "0", "--unixsocket", folder + "/s", "--save", "", "--dir", folder]
        redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            return count_allocations(executable), count_instructions(executable)
        finally:
            redis.terminate()
            redis.wait()


def counted_once(executable):
    allocations, instructions = count(executable)
    if not allocations or allocations.keys() != instructions.keys():
        sys.exit(f"guard: allocations of {sorted(allocations)}, instructions of {sorted(instructions)}: not all counted")
    return {name: {"allocations": allocations[name], "instructions": instructions[name]} for name in allocations}


def least(counts, more):
    """The least counts of each call."""
    return {name: {key: min(value, more[name][key]) for key, value in call.items()} for name, call in counts.items()}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    executable, path = os.path.abspath(sys.argv[1]), sys.argv[2]
    counted = counted_once(executable)
    if "--update" in sys.argv:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(counted, file, indent=2)
            file.write("\n")
        return
    with open(path, encoding="utf-8") as file:
        thresholds = json.load(file)
    text, failed = compare(counted, thresholds)
    for _ in range(1, ATTEMPTS):
        if not failed:
            break
        counted = least(counted, counted_once(executable))
        text, failed = compare(counted, thresholds)
    print(text)
    sys.exit(1 if failed else 0)


def compare(counted, thresholds):
    """A table of the counts, and whether one is above its maximum or missing."""
    lines = [f"{'call':32} {'allocations':>12} {'allowed':>8} {'instructions':>13} {'allowed':>9}"]
    failed = False
    for name, now in counted.items():
        allowed = thresholds.get(name)
        if allowed is None:
            lines.append(f"{name:32} has no threshold; see guard --update")
            failed = True
            continue
        maximum = round(allowed["instructions"] * INSTRUCTION_TOLERANCE)
        # Sometimes a table grows during the thousand calls.
        maximum_allocations = allowed["allocations"] * ALLOCATION_TOLERANCE + 0.1
        is_over = now["allocations"] > maximum_allocations or now["instructions"] > maximum
        failed = failed or is_over
        lines.append(
            f"{name:32} {now['allocations']:12.1f} {allowed['allocations']:8.1f} {now['instructions']:13,} {maximum:9,}"
            f"{'  over' if is_over else ''}"
        )
    for name, other, maximum in RATIOS:
        ratio = counted[name]["instructions"] / counted[other]["instructions"]
        is_over = ratio > maximum * 1.02
        failed = failed or is_over
        lines.append(f"{name}: {ratio:.2f} times {other}, goal {maximum}{'  over' if is_over else ''}")
    for name in thresholds.keys() - counted.keys():
        lines.append(f"{name:32} was not counted")
        failed = True
    return "\n".join(lines), failed


main()
