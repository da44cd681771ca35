import CacheActivity
import Foundation
import LMDBURLCache

/// `urlcache top`: the URLs or hosts with the most requests of a kind.
enum TopCommand: Command {
  static let manual = CommandHelp(
    name: "top", summary: "Shows the URLs or hosts with the most misses, hits, bytes or time.",
    usage: ["DIR [--by misses|hits|bytes|time] [--hosts] [FILTER]... [--interval SECONDS] [OPTION]..."],
    discussion: """
      Watches the requests of all processes through the cache in DIR, and shows the URLs with the most of them since it
      was started. On a terminal it redraws the screen, q ends it, and ? shows a line of help; otherwise it prints a
      table after each interval. URLs include their queries, which may contain secrets.

      FILTER is that of 'urlcache log': --host, --path, --status, --outcome or --slower-than. Only requests that match
      count.

      Requests are recorded only while a process watches. Of more than 4,000 requests per second, a part is recorded,
      so that the numbers are a sample. At most 20,000 URLs are counted; then the least are forgotten.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(
        name: "by", placeholder: "ORDER",
        help: "misses (the default), hits, bytes (of bodies) or time (until the heads\nwere available).",
        values: TopTable.Order.allCases.map(\.rawValue)),
      Option(name: "hosts", help: "Adds up the URLs of each host."),
      Option(name: "interval", placeholder: "SECONDS", help: "The pause between refreshes, 1 to 3600; 2 by default."),
      Option(name: "count", placeholder: "COUNT", help: "Ends after COUNT refreshes."),
    ] + EventFilter.options + [
      Option(
        name: "json",
        help: "Prints a JSON object in a line after each interval, with at most 100 URLs; sizes\nare in bytes.")
    ],
    failure: "there is no cache in DIR, it cannot be read, or it was deleted while it was\n     watched")

  private static let jsonRowCount = 100

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let name = arguments.value("by") ?? "misses"
    guard let order = TopTable.Order(rawValue: name) else {
      throw UsageError("--by takes misses, hits, bytes or time, not '\(name)'")
    }
    let filter = try EventFilter(arguments)
    let interval = try arguments.number("interval", in: 1...3600, default: 2)
    let count = try arguments.number("count", in: 1...1_000_000_000, default: .max)
    let directory = try CacheAccess.openDirectory(arguments)
    var table = TopTable(order: order, addsUpHosts: arguments.has("hosts"))
    var screen = Screen(
      help: "by \(name) (--by), every \(interval) s (--interval)", hasKeys: !arguments.has("json"))
    defer { screen.end() }
    let loop = WatchLoop(directory: directory)
    let watch = try loop.watchEvents()
    let skippedBefore = watch.skippedCount
    let start = ContinuousClock.now
    var missing: Int { watch.lostCount + watch.skippedCount - skippedBefore }
    func draw(isFirst: Bool) throws {
      let size = screen.isTerminal ? screen.size : (80, 24)
      let seconds = (ContinuousClock.now - start).components.seconds
      let title =
        "urlcache top  \(Format.visible(directory.path)), \(Format.count(table.requestCount, "request")) in "
        + Format.duration(Double(seconds)) + (missing > 0 ? ", \(Format.count(missing)) not recorded" : "")
      let lines = [title, ""] + table.lines(maximumCount: screen.isTerminal ? size.1 - 4 : 20, columns: size.0)
      try screen.draw(screen.isTerminal || isFirst ? lines : [""] + lines)
    }
    for number in 0..<count {
      let end = ContinuousClock.now + .seconds(interval)
      // The file of events holds few of them, so it is read more often than the screen is drawn.
      while ContinuousClock.now < end {
        let request = try loop.wait(min(.milliseconds(100), end - .now), &screen)
        if request == .quit { return .success }
        for event in watch.next() where filter.matches(event) { table.add(event) }
        if request == .redraw { try draw(isFirst: false) }
      }
      if arguments.has("json") {
        try Output.write(table.json(maximumCount: jsonRowCount, missingCount: missing).compact + "\n")
        continue
      }
      try draw(isFirst: number == 0)
    }
    return .success
  }
}

/// The counts of requests by URL or host.
struct TopTable {
  enum Order: String, CaseIterable {
    case misses, hits, bytes, time
  }

  private struct Row {
    var requests = 0
    var hits = 0
    var misses = 0
    var byteCount = 0
    var nanoseconds = 0

    func value(_ order: Order) -> Int {
      switch order {
      case .misses: misses
      case .hits: hits
      case .bytes: byteCount
      case .time: nanoseconds
      }
    }
  }

  static let maximumRowCount = 20_000

  private let order: Order
  private let addsUpHosts: Bool
  private var rows: [String: Row] = [:]
  /// The number of requests that were added.
  private(set) var requestCount = 0

  init(order: Order, addsUpHosts: Bool) {
    self.order = order
    self.addsUpHosts = addsUpHosts
  }

  mutating func add(_ event: RequestEvent) {
    requestCount += 1
    let name = addsUpHosts ? URL.canonicalHostName(in: event.url) : event.url
    var row = rows[name] ?? Row()
    row.requests += 1
    if event.outcome == .hit || event.outcome == .stale { row.hits += 1 } else { row.misses += 1 }
    row.byteCount += event.byteCount
    row.nanoseconds &+= event.nanoseconds
    rows[name] = row
    if rows.count > Self.maximumRowCount { forget() }
  }

  /// Keeps the upper half.
  private mutating func forget() {
    let kept = sorted().prefix(Self.maximumRowCount / 2)
    rows = Dictionary(uniqueKeysWithValues: kept.map { ($0.key, $0.value) })
  }

  private func sorted() -> [(key: String, value: Row)] {
    rows.sorted { one, other in
      let values = (one.value.value(order), other.value.value(order))
      if values.0 != values.1 { return values.0 > values.1 }
      return one.value.requests == other.value.requests
        ? one.key < other.key : one.value.requests > other.value.requests
    }
  }

  /// Returns the numbers of the first rows.
  ///
  /// - Parameter missingCount: The number of requests that were not recorded.
  func json(maximumCount: Int, missingCount: Int) -> JSON {
    let rows = sorted().prefix(maximumCount).map { name, row -> JSON in
      .object([
        (addsUpHosts ? "host" : "url", .string(name)), ("requests", .number(row.requests)), ("hits", .number(row.hits)),
        ("misses", .number(row.misses)), ("byteCount", .number(row.byteCount)),
        ("microseconds", .decimal(Double(row.nanoseconds) / 1000)),
      ])
    }
    return ["requests": .number(requestCount), "notRecorded": .number(missingCount), "rows": .array(rows)]
  }

  /// Returns the header and the first rows, cut to a number of columns.
  ///
  /// If the columns do not suffice for URLs, those of the other values are left out, the value of the order last.
  func lines(maximumCount: Int, columns: Int) -> [String] {
    let rows = sorted().prefix(max(maximumCount, 1))
    var values = Value.allCases
    while true {
      let shown = values
      let table = Format.table(
        [shown.map(\.title) + [addsUpHosts ? "HOST" : "URL"]]
          + rows.map { name, row in shown.map { $0.text(row) } + [Format.visible(name)] },
        rightAligned: Set(shown.indices))
      let lines = table.split(separator: "\n")
      let usedColumnCount = (lines.first?.count ?? 0) - (addsUpHosts ? 4 : 3)
      guard columns - usedColumnCount < Self.minimumURLColumnCount,
        let index = values.lastIndex(where: { $0 != .requests && $0 != Value(order) })
          ?? values.firstIndex(of: .requests)
      else { return lines.map { String($0.prefix(columns)) } }
      values.remove(at: index)
    }
  }

  /// The columns of a URL below which other columns are left out.
  private static let minimumURLColumnCount = 28

  /// A column of numbers, in their order on the screen.
  private enum Value: CaseIterable {
    case requests, hitRatio, misses, bytes, time

    init(_ order: Order) {
      switch order {
      case .misses: self = .misses
      case .hits: self = .hitRatio
      case .bytes: self = .bytes
      case .time: self = .time
      }
    }

    var title: String {
      switch self {
      case .requests: "REQUESTS"
      case .hitRatio: "HIT%"
      case .misses: "MISSES"
      case .bytes: "BYTES"
      case .time: "TIME"
      }
    }

    func text(_ row: Row) -> String {
      switch self {
      case .requests: Format.count(row.requests)
      case .hitRatio: ActivityReport.percent(Double(row.hits) / Double(row.requests))
      case .misses: Format.count(row.misses)
      case .bytes: Format.bytes(row.byteCount)
      case .time: Format.latency(row.nanoseconds)
      }
    }
  }
}
