#!/usr/bin/env python3
"""Prints the source files of this package that a hot call passes, with the instructions in each.

Usage: walks.py HOT-PATH-BUDGET-EXECUTABLE [CALL...]

Without names of calls: a hit in memory and on disk by data(for:), a hit as a value, and a miss. callgrind names the file
of each instruction, also of inlined functions. A file counts if at least one instruction of it runs in each call.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

CALLS = 1000  # How often HotPathBudget repeats each call.
DEFAULT_CALLS = [
    "data(for:), memory",
    "data(for:), disk, 11 KB",
    "respond(to:over:), memory",
    "miss 11 KB, with its commit",
]
ENVIRONMENT = {**os.environ, "SWIFT_DETERMINISTIC_HASHING": "1"}


def instructions_by_file(text):
    """Returns the instructions of each file in a profile of callgrind; see "Callgrind Format Specification"."""
    names, counts = {}, {}
    file, is_call = None, False
    for line in text.split("\n"):
        if match := re.match(r"^(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?$", line):
            kind, number, name = match.groups()
            if name:
                names[number] = name
            if not kind.startswith("c"):
                file = names[number]
        elif line.startswith("calls="):
            # The next line has the cost of the called function.
            is_call = True
        elif match := re.match(r"^[+\-*\d]\S* (\d+)$", line):
            if not is_call:
                counts[file] = counts.get(file, 0) + int(match.group(1))
            is_call = False
    return counts


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    executable, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:] or DEFAULT_CALLS
    sources = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "Sources")) + "/"
    profiles = {}
    with tempfile.TemporaryDirectory() as folder:
        ENVIRONMENT["GUARD_REDIS"] = folder + "/s"
        command = ["redis-server", "--port", "0", "--unixsocket", folder + "/s", "--save", "", "--dir", folder]
        redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", executable]
            subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
        finally:
            redis.terminate()
            redis.wait()
        for path in glob.glob(folder + "/out.*"):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            if name := re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE):
                profiles[name.group(1)] = instructions_by_file(text)
    for call in wanted:
        if call not in profiles:
            sys.exit(f"walks: HotPathBudget has no call {call}")
        files = {
            os.path.realpath(file).removeprefix(sources): count / CALLS
            for file, count in profiles[call].items()
            if file and os.path.realpath(file).startswith(sources) and count >= CALLS
        }
        if not files:
            sys.exit(f"walks: the profile of {call} names no file of {sources}")
        modules = {file.split("/")[0] for file in files}
        total = sum(files.values())
        most, sum_of_most = 0, 0
        for count in sorted(files.values(), reverse=True):
            if sum_of_most * 10 < total * 9:
                most, sum_of_most = most + 1, sum_of_most + count
        print(f"{call}: {len(files)} files in {len(modules)} modules; {most} have 90% of {total:,.0f} instructions")
        for file, count in sorted(files.items(), key=lambda item: -item[1]):
            print(f"{count:10,.0f}  {file}")


main()
