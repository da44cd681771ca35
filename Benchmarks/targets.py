"""The performance targets, and whether the rows of results.json meet them."""

from collections import namedtuple

from labels import entry_count, implementation, metric, number, scenario

Target = namedtuple("Target", "metric scenario target measured met")
STORE, BASELINE = "ResponseStore", "raw C, head then body"
CLIENT = "LMDBURLCache.data(for:)"
VALUES = "CachingClient.respond(to:over:)"


def targets(rows):
    """All targets, in the order in which RESULTS.md lists them. The ones without rows are marked as not measured."""
    found = {}
    for row in rows:
        found.setdefault((row["suite"], row["measure"], row["peer"]), {})[row["scenario"]] = row

    def values(suite, measure, peer, figure="median"):
        """The medians by scenario, or the figures of that name."""
        return {name: row[figure] for name, row in found.get((suite, measure, peer), {}).items()}

    results = []

    def add(label, where, value, limit, at_least, unit=""):
        target = f"{'≥' if at_least else '≤'} {number(limit)}{unit}"
        if value is None:
            results.append(Target(label, where, target, "–", "–"))
            return
        met = value >= limit if at_least else value <= limit
        results.append(Target(label, where, target, f"{number(value)}{unit}", "yes" if met else "**no**"))

    def ratio(label, top, bottom, limit, at_least=True, where=""):
        """A target for each scenario that both have: the first value divided by the second."""
        shared = [name for name in top if name in bottom]
        if not shared:
            add(label, where, None, limit, at_least, "×")
        for name in shared:
            add(label, scenario(name), top[name] / bottom[name], limit, at_least, "×")

    def limits(label, table, limit, unit, at_least=False):
        """A target for each scenario."""
        for name, value in table.items():
            add(label, scenario(name), value, limit, at_least, unit)

    def with_two_threads(one, two):
        """The tables whose ratio is the speedup: the times are for one operation of each thread."""
        return {name: 2 * value for name, value in one.items()}, two

    read_targets(values, add, ratio, with_two_threads)
    foundation_targets(values, ratio, limits, with_two_threads)
    write_targets(values, ratio, limits)
    purge_targets(values, limits)
    opening_targets(values, add, limits)
    client_targets(values, add, ratio)
    churn_targets(values, add, ratio)
    watched_targets(values, limits)
    scale_targets(values, ratio, limits)
    fleet_targets(values, add)
    large_targets(values, limits)
    return results


def read_targets(values, add, ratio, with_two_threads):
    hit, baseline = values("reads", "hit", STORE), values("reads", "hit", BASELINE)
    for size, limit in [("1 KB", 0.9), ("16 KB", 0.9), ("256 KB", 0.95)]:
        of_size = lambda table: {name: value for name, value in table.items() if name.startswith(size + " ")}
        ratio("Hit throughput relative to the C baseline", of_size(baseline), of_size(hit), limit)
    two = values("reads", "hit, 2 threads", STORE)
    one = values("reads", "hit, 2 threads", STORE + ", one thread")
    ratio("Hit speedup with 2 threads", *with_two_threads(one, two), 1.8)
    ratio("Hit throughput during writes relative to idle", values("reads", "hit, alone", STORE),
          values("reads", "hit, during writes", STORE), 0.9)
    as_values, by_data = (values("reads", "hits as values", peer) for peer in [VALUES, CLIENT])
    for name in as_values:
        add("Hits in memory as values per second", f"1 KB, {name}", as_values[name], 1_000_000, True)
        add("Hit throughput in memory as values relative to `data(for:)`", f"1 KB, {name}",
            as_values[name] / by_data[name], 2, True, "×")
    ratio("Zero-copy hit throughput relative to C pointers", values("reads", "hit", "raw C, pointers"),
          values("reads", "hit", "ResponseStore, borrowed"), 0.75)
    small = sorted((entry_count(name), value) for name, value in hit.items() if name.startswith("1 KB "))
    if len(small) > 1:
        add(f"Hit latency at {small[-1][0]:,} entries relative to {small[0][0]:,}", "1 KB", small[-1][1] / small[0][1],
            2, False, "×")


def foundation_targets(values, ratio, limits, with_two_threads):
    lookups = lambda peer: values("sessions", "cachedResponse", peer)
    memory = lookups("LMDBURLCache, memory")
    ratio("`cachedResponse(for:)`: disk-hit latency relative to creating the Foundation objects",
          lookups("LMDBURLCache, disk"), lookups("bare construction"), 1.15, at_least=False)
    millions = {name: 1000 / value for name, value in memory.items()}
    limits("`cachedResponse(for:)`: memory hits, million per second", millions, 1, "", at_least=True)
    ratio("`cachedResponse(for:)`: memory-hit speedup with 2 threads",
          *with_two_threads(memory, values("sessions", "cachedResponse, 2 threads", "LMDBURLCache, memory")), 1.8)
    ratio("`data(for:)` speedup over an immediate `URLSession` task",
          values("sessions", "load", "URLSession, answered at once"), values("sessions", "load", CLIENT), 10)


def write_targets(values, ratio, limits):
    for percentile, limit in [("p50", 10), ("p99", 200)]:
        limits(f"`store` call, {percentile}", values("writes", f"store call, {percentile}", STORE), limit, " µs")
    durable = lambda peer: values("writes", "durable store", peer)
    for peer, name, limit in [
        ("raw C, same rows", "the C baseline", 0.7), ("SQLite", "SQLite", 3),
        ("one file per entry, synced", "one file per entry, synced", 2),
    ]:
        ratio(f"Durable write throughput relative to {name}", durable(peer), durable(STORE), limit)


def purge_targets(values, limits):
    for measure, percentile, limit in [("call", "p50", 5), ("call", "p99", 50), ("soft call", "p99", 10)]:
        name = "Soft purge" if measure == "soft call" else "Purge"
        limits(f"{name} during writes, {percentile}, slowest scope",
               values("purge", f"{measure}, {percentile}", STORE + ", during writes", "most"), limit, " ms")


def opening_targets(values, add, limits):
    limits("Opening", values("open", "open", STORE), 10, " ms")
    usage = values("open", "currentDiskUsage", "LMDBURLCache")
    usage = sorted((entry_count(name), value) for name, value in usage.items())
    if len(usage) > 1:
        add(f"`currentDiskUsage` latency at {usage[-1][0]:,} entries relative to {usage[0][0]:,}", "1 KB",
            usage[-1][1] / usage[0][1], 2, False, "×")


def client_targets(values, add, ratio):
    for value in values("server", "requests at the origin", CLIENT).values():
        add("Origin requests", "1,000 concurrent misses of one URL", value, 1, False)
    tasks = "64 tasks"
    add("Requests per second, 95% hits", tasks, values("server", "requests", CLIENT).get(tasks), 100_000, True)
    p99 = values("server", "p99", CLIENT).get(tasks)
    add("Request, 95% hits, p99", tasks, None if p99 is None else p99 / 1000, 5, False, " ms")
    memory_targets(values, add)
    misses = lambda peer, name: {key: value for key, value in values("misses", "misses", peer).items() if key == name}
    baseline = "loop in C on libcurl", "the C baseline on libcurl"
    session = "bare URLSession", implementation("bare URLSession")
    for name, (peer, label), limit in [
        ("64 callers, 11 KB", baseline, 0.5), ("64 callers, 11 KB", session, 8), ("1 caller, 11 KB", baseline, 0.4),
    ]:
        ratio(f"Miss throughput, each stored, relative to {label}", misses(CLIENT, name),
              misses(peer, name), limit, where=name)
    ratio("Miss throughput as values, each stored, relative to the C baseline on libcurl",
          misses(VALUES, "64 callers, 11 KB"), misses(baseline[0], "64 callers, 11 KB"), 0.7)


def memory_targets(values, add):
    first, last = (values("memory", f"resident memory, {tenth} tenth", "LMDBURLCache") for tenth in ["second", "last"])
    for name in first.keys() & last.keys():
        add("Resident memory, last tenth beyond the second", scenario(name), last[name] - first[name], 2.1, False, " MB")
    for measure, limit, unit in [("descriptors left", 0, ""), ("resident memory beyond idle", 16.8, " MB")]:
        for name, value in values("memory", measure, "LMDBURLCache").items():
            add(metric(measure), scenario(name), value, limit, False, unit)


def churn_targets(values, add, ratio):
    for value in values("churn", "stores refused", STORE).values():
        add("Dropped writes", "sustained eviction", value, 0, False)
    for value in values("churn", "disk at most", STORE).values():
        add("Peak disk usage relative to the capacity", "sustained eviction", value, 110, False, "%")
    ratio("Sustained eviction: write time, last 10% relative to first 10%", values("churn", "last tenth", STORE),
          values("churn", "first tenth", STORE), 1.6, at_least=False)


def watched_targets(values, limits):
    """Targets for the recording of requests. Those without rows are left out."""
    for tier in ["memory", "disk"]:
        limits(f"Hit throughput from {tier} while recorded, relative to not recorded",
               values("watched", f"load from {tier}, relative to not recorded", CLIENT + ", watched"), 0.97, "×", True)


def fleet_targets(values, add):
    """Targets for a fleet of machines. Those without rows are left out."""
    cache, member = "LMDBURLCache", "LMDBURLCache, in a fleet"
    value = lambda measure, where, peer=cache: values("fleet", measure, peer).get(where)
    if value("purge, p50", "8 machines") is None:
        return
    suspended = "1 of 8 machines suspended"
    for where in ["8 machines", "8 machines, appendfsync always", suspended]:
        add("Purge, p50", where, value("purge, p50", where), 4, False, " ms")
        add("Purge, p99", where, value("purge, p99", where), 15, False, " ms")
    add("First purge, beyond 1.25 leases and 0.25 s", suspended, value("first purge, beyond the wait", suspended), 500,
        False, " ms")
    add("Shared response, p50, relative to `GET` by hiredis", "16 KB",
        value("shared hit", "16 KB") / value("shared hit", "16 KB", "hiredis, GET"), 2, False, "×")
    without = value("miss", "1 KB")
    add("Lookup in Redis on a miss, p50", "1 KB", value("miss", "1 KB", member) - without, 200, False, " µs")
    stopped = "1 KB, Redis suspended"
    first = value("one of the first 3 misses", stopped, member)
    add("Lookup in Redis, first 3 misses", stopped, (first - without) / 1000, 50, False, " ms")
    add("Lookup in Redis, later misses, p50", stopped, value("later miss", stopped, member) - without, 200, False,
        " µs")
    add("Fetches of one URL", "50 machines, at once", value("fetches of one URL", "50 machines, at once"), 1, False)
    hit = value("cachedResponse", "1 KB, memory", member) - value("cachedResponse", "1 KB, memory")
    add("Local hit in a fleet, beyond one without", "1 KB, memory", hit, 20, False, " ns")


def large_targets(values, limits):
    """Targets for large bodies. Those without rows are left out."""
    for peer in [VALUES, "LMDBURLCache.bytes(for:)"]:
        name = implementation(peer)
        large = lambda measure: values("large", measure, peer)
        limits(f"Transfer rate relative to a download to a file, {name}", large("transfer, relative to a file"), 0.8,
               "×", True)
        limits(f"Transfer, peak resident memory above idle, {name}", large("transfer, peak memory beyond idle"), 24,
               " MB")
        limits(f"Hit rate relative to reading the file, {name}", large("hit, relative to the file"), 0.9, "×", True)
    readers = lambda measure: values("large", measure, VALUES + ", 100 readers")
    limits("Origin requests for 100 readers", readers("transfers for 100 readers"), 1, "")
    limits("100 readers of one transfer, peak resident memory above idle",
           readers("100 readers of one transfer, peak memory beyond idle"), 64, " MB")


def scale_targets(values, ratio, limits):
    """Targets for a full disk with many entries. Those without rows are left out."""
    store = lambda measure: values("scale", measure, STORE)
    filling = store("stores while filling, last million")
    full = store("stores when full")
    if filling:
        ratio("Write throughput with a full disk relative to filling", full, filling, 0.8)
        ratio("Lookup p99 with a full disk relative to filling", store("lookup when full, p99"),
              store("lookup while filling, p99"), 1.5, at_least=False)
    for measure, limit, at_least, unit in [
        ("written for each byte stored while filling", 2.5, False, ""),
        ("written for each byte stored when full", 3, False, ""),
        ("entries kept when full", 97, True, "%"),
        ("evicted for one stored, the worst tenth", 1.2, False, ""),
        ("longest store call when full", 50, False, " ms"),
        ("a cold hit reads", 17.4, False, " KB"),
        ("purge of everything: deleted", 5, False, " s"),
        ("purge of everything: written", 150, False, " MB"),
        ("purge of a tenth, by date: deleted", 3, False, " s"),
        ("purge of a tenth, by date: written", 100, False, " MB"),
        ("purge of a third, by date: deleted", 3, False, " s"),
        ("purge of a third, by date: written", 150, False, " MB"),
        ("purge of a tenth, by host: deleted", 8, False, " s"),
        ("purge of a tenth, by host: written", 200, False, " MB"),
        ("open after a clean close, cold", 100, False, " ms"),
        ("open after kill -9, cold", 100, False, " ms"),
        ("open with half the capacity", 100, False, " ms"),
        ("urlcache stats, cold", 0.5, False, " s"),
        ("urlcache list | head -5, cold", 0.5, False, " s"),
        ("urlcache verify, cold, memory", 64, False, " MB"),
    ]:
        limits(metric(measure), store(measure), limit, unit, at_least)
