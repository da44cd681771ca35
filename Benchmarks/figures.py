"""The figures of the record in README, articles and notes: the texts below, with places for the figures.

Usage: figures.py RESULTS.json     fails if a document has other figures, and names it

A place is {digits factor|suite|measure|scenario|implementation}: the number of significant digits, the factor that
converts the row's unit (1 if it is left out), and names as in results.json.
"""

import json
import math
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
ARTICLES = "Sources/LMDBURLCache/LMDBURLCache.docc/"
HIT = "reads|hit|1 KB x 100,000|"
SMALL, LARGE = "|1 KB x 100,000|ResponseStore", "|1 KB x 1,000,000|ResponseStore"


def hit(*peers):
    return " | ".join(f"{{2 .001|{HIT}{peer}}}" for peer in peers)


def durable(scenario):
    peers = ("ResponseStore", "raw C, same rows", "RocksDB, synced", "SQLite", "one file per entry, synced")
    return " | ".join(f"{{2|writes|durable store|{scenario}|{peer}}}" for peer in peers)


def full(measure):
    return " | ".join(f"{{3|scale|{measure}|1 KB x 1,000,000|{peer}}}" for peer in ("ResponseStore", "RocksDB", "SQLite"))


def both_sizes(measure, digits=2):
    return f"{{{digits}|scale|{measure}{SMALL}}}", f"{{{digits}|scale|{measure}{LARGE}}}"


def misses(scenario, peer):
    return f"{{2|misses|misses|{scenario}|{peer}}}"


def time_of_miss(peer):
    return " | ".join(f"{{3|misses|processor time|{scenario}, 11 KB|{peer}}} µs" for scenario in ("1 caller", "64 callers"))


def deletion(label, measure):
    small, large = both_sizes(measure)
    return f"| {label} | {small} s | {large} s |"


def entries(body):
    return f"| {body} | {{3|sizes|entries in 1 GB on disk|{body}|ResponseStore}} | " \
        f"{{3|sizes|entries in 1 GB of memory|{body}|LMDBURLCache, memory}} |"


FILLING, FULL = both_sizes("stores while filling, last million", 3), both_sizes("stores when full", 3)
LONGEST = both_sizes("longest store call when full")

DOCUMENTS = {
    "README.md": [
        "| Disk hit, 1 KB, among 100,000 entries | "
        + hit("ResponseStore", "raw C, head then body", "RocksDB", "SQLite", "one file per entry") + " |",
        "| Durable write, 1 KB | " + durable("1 KB x 40,000") + " |",
        "| Durable write, 16 KB | " + durable("16 KB x 10,000") + " |",
        f"The same hit takes {hit('Redis, Unix socket')} µs with Redis, and "
        "{2 .001|reads|hit|1 KB x 1,000|Foundation URLCache} µs with Foundation's",
        "`cachedResponse(for:)`, hit in memory | {2 .001|sessions|cachedResponse|1 KB x 10,000|LMDBURLCache, memory} µs |",
        "hit on disk | {2 .001|sessions|cachedResponse|1 KB x 10,000|LMDBURLCache, disk} µs | Foundation takes "
        "{2 .001|sessions|cachedResponse|1 KB x 10,000|bare construction} µs",
        "| `data(for:)`, hit | {2 .001|sessions|load|1 KB x 10,000|LMDBURLCache.data(for:)} µs | a `URLSession` task that "
        "completes immediately: {2 .001|sessions|load|1 KB x 10,000|URLSession, answered at once} µs |",
        "`ResponseCache`, hit in memory | {2 .001|reads|processor time of a hit as a value|1 task|"
        "CachingClient.respond(to:over:)} µs |",
        "until the call returns | {2|writes|store call, p50|16 KB x 1,000|ResponseStore} µs |",
        "during writes | {2|purge|call, p50|1 KB x 1,000,000|ResponseStore, during writes} ms (p99: "
        "{2|purge|call, p99|1 KB x 1,000,000|ResponseStore, during writes} ms)",
        "| Writes per second | " + full("stores when full") + " |",
        "| Bytes written to disk per entry | " + full("bytes written when full") + " |",
        "took {2|scale|open after a clean close, cold|1 KB x 1,000,000|ResponseStore} ms, and "
        "{2|scale|open after kill -9, warm|1 KB x 1,000,000|ResponseStore} ms after `kill -9`.",
        "With 64 callers and bodies of 11 KB, `data(for:)` fetches and stores "
        f"{misses('64 callers, 11 KB', 'LMDBURLCache.data(for:)')} misses per second, a caching `URLSession` "
        f"{misses('64 callers, 11 KB', 'caching URLSession')}, and a `URLSession` without a cache "
        f"{misses('64 callers, 11 KB', 'bare URLSession')}.",
    ],
    ARTICLES + "Sizing.md": [entries(body) for body in ("256 B", "1 KB", "4 KB", "16 KB", "64 KB", "256 KB")] + [
        "A large body that arrives takes about {1|large|transfer, peak memory beyond idle|2000 MB|"
        "CachingClient.respond(to:over:)} MB, and",
        f"| Writes per second, filling; full | {FILLING[0]}; {FULL[0]} | {FILLING[1]}; {FULL[1]} |",
        f"| Longest `store` call on a full disk | {LONGEST[0]} ms | {LONGEST[1]} ms |",
        deletion("Deletion of 10%, by date", "purge of a tenth, by date: deleted"),
        deletion("Deletion of 10%, by host", "purge of a tenth, by host: deleted"),
        deletion("Deletion of everything", "purge of everything: deleted"),
        deletion("Time to reach half the capacity during writes", "half the capacity: reached after"),
    ],
    ARTICLES + "OperatingACache.md": [
        f"take {both_sizes('urlcache stats, warm', 1)[1]} s, `list` {both_sizes('urlcache list, warm')[1]} s, and `verify` "
        f"{both_sizes('urlcache verify, warm')[1]} to {both_sizes('urlcache verify, cold')[1]} s.",
    ],
    "Benchmarks/NOTES.md": [
        "follows the disk: {2|large|transfer, relative to a file|2000 MB|CachingClient.respond(to:over:)} in the record",
        "nginx, which syncs nothing either, has {2|large|transfer, relative to a file|2000 MB|nginx proxy_cache}.",
        "| `data(for:)` | " + time_of_miss("LMDBURLCache.data(for:)") + " |",
        "| `ResponseCache`, as values | " + time_of_miss("CachingClient.respond(to:over:)") + " |",
        "| `CurlTransport` without a cache | " + time_of_miss("CurlTransport alone") + " |",
        "| C baseline on libcurl | " + time_of_miss("loop in C on libcurl") + " |",
    ],
}


def digits(value, count):
    """The value, rounded to some significant digits."""
    rounded = float(f"{value:.{count}g}")
    before_point = math.floor(math.log10(abs(rounded))) + 1 if rounded else 1
    return f"{rounded:,.{max(count - before_point, 0)}f}"


def figure(place, rows):
    words, suite, measure, scenario, peer = place.split("|")
    count, _, factor = words.partition(" ")
    key = (suite, measure, scenario, peer)
    if key not in rows:
        raise KeyError(f"figures: the record has no row {' | '.join(key)}, which a document quotes")
    return digits(rows[key] * float(factor or 1), int(count))


def fill(text, template, rows):
    """Replaces the figures where the text has the template."""
    parts = re.split(r"\{([^{}]*)\}", template)
    # Lines may be broken anywhere.
    literals = [r"\s+".join(re.escape(word) for word in re.split(r"\s+", part)) for part in parts[::2]]
    pattern = "(" + r")[0-9.,]*[0-9](".join(literals) + ")"
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise ValueError(f"figures: found {len(found)} times, instead of once: {template}")
    groups, figures = found[0].groups(), [figure(place, rows) for place in parts[1::2]]
    filled = "".join(group + value for group, value in zip(groups, figures + [""]))
    return text[:found[0].start()] + filled + text[found[0].end():]


def changed_documents(rows):
    """The documents that the rows change, with their new texts by path."""
    table = {(row["suite"], row["measure"], row["scenario"], row["peer"]): row["median"] for row in rows}
    changed = {}
    for name, templates in DOCUMENTS.items():
        path = os.path.normpath(os.path.join(ROOT, name))
        with open(path, encoding="utf-8") as file:
            before = text = file.read()
        for template in templates:
            text = fill(text, template, table)
        if text != before:
            changed[path] = text
    return changed


def write_figures(rows):
    """Writes the figures into all documents; into none if one lacks a text or the record a row."""
    for path, text in changed_documents(rows).items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        changed = changed_documents(json.load(file)["rows"])
    for path in changed:
        print(f"{path}: has other figures than the record; run Scripts/bench report", file=sys.stderr)
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
