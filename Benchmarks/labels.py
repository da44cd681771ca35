"""Names and units as people read them. The keys in results.json stay as `Bench` writes them."""

import re

SUITES = {
    "reads": "Store lookups",
    "sessions": "Foundation API",
    "writes": "Writing",
    "purge": "Purging and evicting",
    "evict": "Evicting",
    "churn": "Sustained eviction, 20× the capacity",
    "open": "Opening and memory",
    "server": "Server throughput, 95% hits",
    "misses": "Misses",
    "memory": "Memory and descriptors",
    "scale": "Full disk",
    "fleet": "Fleet of machines",
    "large": "Large bodies",
    "sizes": "Responses in 1 GB",
    "watched": "Hits while `urlcache log` records the requests",
}

# How names of this library's parts begin.
OWN = ("ResponseStore", "LMDBURLCache", "CachingClient", "caching URLSession", "URLSession, caching")

METRICS = {
    "first hit": "First hit after opening (verifies checksums)",
    "hit": "Hit",
    "hit, 2 threads": "Hit, 2 threads",
    "hit, alone": "Hit, idle",
    "hits as values": "Hits of 1 KB in memory as values",
    "processor time of a hit as a value": "CPU time of a hit as a value",
    "hit, during writes": "Hit, during writes",
    "call, p50": "Purge call, p50 of each scope",
    "call, p99": "Purge call, p99 of each scope",
    "soft call, p50": "Soft purge call, p50 of each scope",
    "soft call, p99": "Soft purge call, p99 of each scope",
    "cachedResponse": "`cachedResponse(for:)`",
    "cachedResponse, 2 threads": "`cachedResponse(for:)`, 2 threads",
    "load": "Load",
    "entries in 1 GB on disk": "Entries in 1 GB on disk",
    "entries in 1 GB of memory": "Entries in 1 GB of memory",
    "load from memory": "Load from memory",
    "load from disk": "Load from disk",
    "load from memory, relative to not recorded": "Load from memory, throughput relative to not recorded",
    "load from disk, relative to not recorded": "Load from disk, throughput relative to not recorded",
    "store call, p50": "`store` call, p50",
    "store call, p99": "`store` call, p99",
    "durable store": "Durable write",
    "full queue: longest call": "Full queue: longest `store` call",
    "full queue: bytes waiting": "Full queue: queued bytes",
    "full queue: dropped": "Full queue: dropped writes",
    "one step": "One eviction step",
    "half at once": "Eviction of half the entries by a lower capacity",
    "stores refused": "Dropped writes",
    "map full retries": "`MDB_MAP_FULL` retries",
    "disk at most": "Peak disk usage",
    "first tenth": "Write time, first 10%",
    "last tenth": "Write time, last 10%",
    "open": "Opening",
    "heap per entry": "Heap growth after opening",
    "currentDiskUsage": "`currentDiskUsage`",
    "requests": "Requests",
    "p50": "Latency, p50",
    "p99": "Latency, p99",
    "requests at the origin": "Origin requests",
    "misses": "Misses",
    "processor time": "CPU time",
    "requests that ended by cancellation": "Cancelled requests",
    "resident memory, second tenth": "Resident memory after 20% of the requests",
    "resident memory, last tenth": "Resident memory after all requests",
    "descriptors left": "Open descriptors left after closing",
    "resident memory beyond idle": "Peak resident memory above idle",
    "stores while filling, last million": "Writes while filling, last million",
    "written for each byte stored while filling": "Bytes written per byte stored, while filling",
    "bytes written while filling": "Bytes written, while filling",
    "lookup while filling, p50": "Lookup while filling, p50",
    "lookup while filling, p99": "Lookup while filling, p99",
    "entries at the first full moment": "Entries when the disk is first full",
    "stores when full": "Writes with a full disk",
    "written for each byte stored when full": "Bytes written per byte stored, with a full disk",
    "bytes written when full": "Bytes written, with a full disk",
    "lookup when full, p50": "Lookup with a full disk, p50",
    "lookup when full, p99": "Lookup with a full disk, p99",
    "longest store call when full": "Longest `store` call with a full disk",
    "longest store call while filling": "Longest `store` call while filling",
    "entries kept when full": "Fewest entries with a full disk",
    "evicted for one stored, the worst tenth": "Evicted per stored entry, worst 10%",
    "disk when full": "Disk usage with a full disk",
    "a cold hit reads": "Disk reads per cold hit",
    "open with half the capacity": "Opening with half the capacity",
    "entries evicted within that open": "Entries evicted while opening with half the capacity",
    "half the capacity: reached after": "Half the capacity: time until reached",
    "half the capacity: disk": "Half the capacity: disk usage",
    "half the capacity: stores meanwhile": "Half the capacity: writes while shrinking",
    "lookup while shrinking, p50": "Lookup while shrinking, p50",
    "lookup while shrinking, p99": "Lookup while shrinking, p99",
    "purge, p50": "Purge, p50",
    "purge, p99": "Purge, p99",
    "first purge, beyond the wait": "First purge, beyond 1.25 leases and 0.25 s",
    "shared hit": "Shared response, p50",
    "shared hit, p99": "Shared response, p99",
    "miss": "Miss, p50",
    "miss, p99": "Miss, p99",
    "one of the first 3 misses": "First 3 misses",
    "later miss": "Later miss, p50",
    "later miss, p99": "Later miss, p99",
    "fetches of one URL": "Fetches of one URL",
    "transfer": "Transfer",
    "transfer, relative to a file": "Transfer rate relative to a download to a file",
    "transfer, processor time": "Transfer, CPU time",
    "transfer, peak memory beyond idle": "Transfer, peak resident memory above idle",
    "stored bodies": "Stored bodies",
    "hit, relative to the file": "Hit rate relative to reading the file",
    "hit, processor time": "Hit, CPU time",
    "hit, peak memory beyond idle": "Hit, peak resident memory above idle",
    "100 readers of one transfer, processor time": "100 readers of one transfer, CPU time",
    "100 readers of one transfer, peak memory beyond idle": "100 readers of one transfer, peak resident memory above idle",
    "transfers for 100 readers": "Origin requests for 100 readers",
}

IMPLEMENTATIONS = {
    "raw C, head then body": "C baseline",
    "raw C, head then body, one thread": "C baseline, 1 thread",
    "raw C, one get": "C, 1 get per hit",
    "raw C, pointers": "C, zero-copy",
    "raw C, same rows": "C baseline",
    "ResponseStore, borrowed": "ResponseStore, zero-copy",
    "ResponseStore, body as Data": "ResponseStore, body as `Data`",
    "ResponseStore, URL to fields": "ResponseStore, with key and header parsing",
    "ResponseStore, verify always": "ResponseStore, checksum on every read",
    "ResponseStore, one thread": "ResponseStore, 1 thread",
    "ResponseStore, until deleted": "ResponseStore, until rows are deleted",
    "ResponseStore, during writes": "ResponseStore, during writes",
    "LMDBURLCache, disk, response not asked for": "LMDBURLCache, disk, response object not built",
    "LMDBURLCache.data(for:)": "LMDBURLCache `data(for:)`",
    "CachingClient.respond(to:over:)": "ResponseCache, as values",
    "CachingClient.respond(to:over:), with fields": "ResponseCache, as values, with fields",
    "LMDBURLCache.bytes(for:)": "LMDBURLCache `bytes(for:)`",
    "CachingClient.respond(to:over:), 100 readers": "ResponseCache, as values",
    "nginx proxy_cache": "nginx `proxy_cache`",
    "read(2) of the file": "`read` of the file in pieces of 256 KB",
    "CurlTransport to a file": "`CurlTransport` to a file, without a cache",
    "LMDBURLCache.data(for:), watched": "LMDBURLCache `data(for:)`, recorded",
    "LMDBURLCache.data(for:), over URLSession": "LMDBURLCache `data(for:)` over `URLSession`",
    "URLSession, caching": "`URLSession` with LMDBURLCache",
    "URLSession, answered at once": "`URLSession`, immediate task",
    "URLSession, Foundation URLCache": "`URLSession` with Foundation's `URLCache`",
    "bare construction": "Foundation objects only",
    "bare URLSession": "`URLSession` without a cache",
    "CurlTransport alone": "`CurlTransport` without a cache",
    "loop in C on libcurl": "C baseline on libcurl",
    "one file per entry": "One file per entry",
    "one file per entry, synced": "One file per entry, synced",
    "Foundation URLCache": "Foundation's `URLCache`",
    "Redis, Unix socket": "Redis on a Unix socket",
    "hiredis, GET": "`GET` by hiredis",
}

UNITS = {
    "us": "µs",
    "us/entry": "µs per entry",
    "us per miss": "µs per miss",
    "ms/MB": "ms per MB",
    "a second": "per second",
    "stores": "writes",
    "bytes/store": "bytes per entry",
    "% of the first full moment": "% of the entries when first full",
    "% of capacity": "% of the capacity",
}


def metric(measure):
    """The label of a measure."""
    if measure in METRICS:
        return METRICS[measure]
    found = re.fullmatch(r"evict (\d+)%", measure)
    if found:
        return f"Eviction of {found[1]}% by a lower capacity"
    found = re.fullmatch(r"since, (\d+)%", measure)
    if found:
        return f"Purge by date, {found[1]}% of the entries"
    found = re.fullmatch(r"open (.+)", measure)
    if found:
        return f"Opening {found[1]}"
    found = re.fullmatch(r"(urlcache .+?), (warm|cold)(, memory)?", measure)
    if found:
        return f"`{found[1]}`, {found[2]} page cache" + (", peak memory" if found[3] else "")
    found = re.fullmatch(r"purge of (everything|(?:a tenth|a third), by (?:date|host)): (\w+)", measure)
    if found:
        part = {"returns": "until the call returns", "deleted": "until rows are deleted", "written": "bytes written"}
        return f"Purge of {found[1].replace('a tenth,', '10%').replace('a third,', 'a third')}: {part[found[2]]}"
    return measure


def entry_count(scenario):
    """The entries in a scenario such as "1 KB x 1,000"; 0 in others."""
    digits = scenario.partition(" x ")[2].split(", ")[0]
    return int(re.sub(r"\D", "", digits) or 0)


def scenario(name):
    """The label of a scenario: "1 KB x 1,000" is "1 KB × 1,000 entries"."""
    return re.sub(r" x ([\d,]*\d)", r" × \1 entries", name)


def is_own(peer):
    """Whether a row is of this library, and not of another implementation."""
    return peer.startswith(OWN)


def implementation(peer):
    return IMPLEMENTATIONS.get(peer, peer)


def number(value):
    """Three significant digits, or all digits before the point."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def quantity(row):
    """The factor from a row's unit to the one that is shown, and that unit."""
    if row["measure"] == "heap per entry":
        return entry_count(row["scenario"]) / 1e6, "MB"
    if row["unit"] == "ns":
        return 1e-3, "µs"
    return 1, UNITS.get(row["unit"], row["unit"])
