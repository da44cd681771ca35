"""The ratios that were promised, computed from the rows and marked as reached or not."""

from collections import namedtuple

Goal = namedtuple("Goal", "text wanted measured verdict")
STORE, RAW = "ResponseStore", "raw C, head then body"


def goals(rows):
    found = {}
    for row in rows:
        found.setdefault((row["suite"], row["measure"], row["peer"]), {})[row["scenario"]] = row["median"]

    def values(suite, measure, peer):
        return found.get((suite, measure, peer), {})

    def size(scenario):
        """The entries in a scenario such as "1 KB x 1,000"."""
        return int(scenario.partition(" x ")[2].replace(",", "") or 0)

    results = []

    def add(text, value, wanted, atLeast, unit=""):
        if value is None:
            return results.append(Goal(text, f"{wanted:g}{unit}", "-", "not measured"))
        reached = value >= wanted if atLeast else value <= wanted
        sign = "at least" if atLeast else "at most"
        results.append(
            Goal(text, f"{sign} {wanted:g}{unit}", f"{value:,.3g}{unit}", "reached" if reached else "**not reached**"))

    def ratio(text, top, bottom, wanted, atLeast=True):
        """For each scenario that both have: how often the second one's time holds the first one's."""
        shared = [scenario for scenario in top if scenario in bottom]
        if not shared:
            add(text, None, wanted, atLeast)
        for scenario in shared:
            add(f"{text}, {scenario}", top[scenario] / bottom[scenario], wanted, atLeast)

    hit, raw = values("reads", "hit", STORE), values("reads", "hit", RAW)
    for name, wanted in [("1 KB", 0.75), ("16 KB", 0.9), ("256 KB", 0.95)]:
        of = lambda table: {key: value for key, value in table.items() if key.startswith(name + " ")}
        ratio("hits a second of the store, by those of the loop in C", of(raw), of(hit), wanted)
    two = values("reads", "hit, 2 threads", STORE)
    one = values("reads", "hit, 2 threads", STORE + ", one thread") or hit  # older results have them apart
    ratio("two threads by one", {key: 2 * value for key, value in one.items()}, two, 1.8)
    ratio("beside a writer, by alone", values("reads", "hit, alone", STORE),
          values("reads", "hit, beside a writer", STORE), 0.9)
    ratio("borrowed hits by raw pointers", values("reads", "hit", "raw C, pointers"),
          values("reads", "hit", "ResponseStore, borrowed"), 0.75)
    small = sorted((size(key), value) for key, value in hit.items() if key.startswith("1 KB "))
    if len(small) > 1:
        add(f"a hit among {small[-1][0]:,} costs, by one among {small[0][0]:,}", small[-1][1] / small[0][1], 2, False)

    lookups = lambda who: values("sessions", "cachedResponse", who)
    ratio("`cachedResponse(for:)` from disk, by bare construction", lookups("LMDBURLCache, disk"),
          lookups("bare construction"), 1.15, atLeast=False)
    for scenario, value in lookups("LMDBURLCache, memory").items():
        add(f"`cachedResponse(for:)` from memory, millions a second, {scenario}", 1000 / value, 1, True)
    ratio("`cachedResponse(for:)` from memory, two threads by one",
          {key: 2 * value for key, value in lookups("LMDBURLCache, memory").items()},
          values("sessions", "cachedResponse, 2 threads", "LMDBURLCache, memory"), 1.8)
    ratio("`data(for:)` hits by tasks answered at once", values("sessions", "load", "URLSession, answered at once"),
          values("sessions", "load", "LMDBURLCache.data(for:)"), 10)

    for name, wanted in [("p50", 10), ("p99", 200)]:
        for scenario, value in values("writes", f"store call, {name}", STORE).items():
            add(f"a store call, {name}, {scenario}", value, wanted, False, " us")
    durable = lambda who: values("writes", "durable store", who)
    for who, wanted in [("raw C, same rows", 0.7), ("SQLite", 3), ("one file per entry, synced", 2)]:
        ratio(f"durable stores by {who}", durable(who), durable(STORE), wanted)

    for measure in ["one key", "since", "group", "prefix", "host", "all"]:
        for name, wanted in [("p50", 5), ("p99", 50)]:
            for scenario, value in values("purge", f"{measure}, {name}", STORE + ", beside a writer").items():
                add(f"purge {measure}, {name}, {scenario}", value, wanted, False, " ms")
    for scenario, value in values("open", "open", STORE).items():
        add(f"open, {scenario}", value, 10, False, " ms")
    usage = sorted((size(key), value) for key, value in values("open", "currentDiskUsage", "LMDBURLCache").items())
    if len(usage) > 1:
        add("`currentDiskUsage` of many entries, by few", usage[-1][1] / usage[0][1], 2, False)
    for value in values("server", "requests at the origin", "LMDBURLCache.data(for:)").values():
        add("requests at the origin for 1,000 misses of one URL", value, 1, False)
    for value in values("churn", "stores refused", STORE).values():
        add("churn: stores refused", value, 0, False)
    for value in values("churn", "disk at most", STORE).values():
        add("churn: disk, % of the capacity", value, 110, False)
    ratio("churn: last tenth by first", values("churn", "last tenth", STORE), values("churn", "first tenth", STORE), 1.6,
          atLeast=False)
    scaleGoals(values, add, ratio)
    return results


def scaleGoals(values, add, ratio):
    """What a full disk with many entries may cost. Rows that a run does not have are left out."""
    mine = lambda measure: values("scale", measure, STORE)
    filling, full = mine("stores while filling, last tenth"), mine("stores when full")
    if filling:
        ratio("full disk: stores a second by those while filling", full, filling, 0.8)
        ratio("full disk: lookups beside, p99, by those beside filling", mine("lookup when full, p99"),
              mine("lookup while filling, p99"), 1.5, atLeast=False)
    for text, measure, wanted, atLeast, unit in [
        ("filling: written for each byte stored", "written for each byte stored while filling", 2.5, False, ""),
        ("full disk: written for each byte stored", "written for each byte stored when full", 3, False, ""),
        ("full disk: entries kept, % of the first full moment", "entries kept when full", 97, True, ""),
        ("full disk: evicted for one stored", "evicted for one stored, the worst tenth", 1.2, False, ""),
        ("full disk: longest store call", "longest store call when full", 50, False, " ms"),
        ("a cold hit reads beside its body", "a cold hit reads", 17.4, False, " KB"),
        ("purge of everything: deleted", "purge of everything: deleted", 15, False, " s"),
        ("purge of everything: written", "purge of everything: written", 150, False, " MB"),
        ("purge of a tenth by date: deleted", "purge of a tenth, by date: deleted", 3, False, " s"),
        ("purge of a tenth by date: written", "purge of a tenth, by date: written", 100, False, " MB"),
        ("purge of a tenth by host: deleted", "purge of a tenth, by host: deleted", 8, False, " s"),
        ("purge of a tenth by host: written", "purge of a tenth, by host: written", 200, False, " MB"),
        ("open after a clean close, cold", "open after a clean close, cold", 100, False, " ms"),
        ("open after kill -9, cold", "open after kill -9, cold", 100, False, " ms"),
        ("open with half the capacity", "open with half the capacity", 100, False, " ms"),
        ("`urlcache stats`, cold", "urlcache stats, cold", 0.5, False, " s"),
        ("`urlcache list | head -5`, cold", "urlcache list | head -5, cold", 0.5, False, " s"),
        ("`urlcache verify`: memory", "urlcache verify, cold, memory", 64, False, " MB"),
    ]:
        for scenario, value in mine(measure).items():
            add(f"{text}, {scenario}", value, wanted, atLeast, unit)
