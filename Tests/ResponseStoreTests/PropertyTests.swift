import Foundation
import HTTPCaching
import Testing

@testable import CacheModel
@testable import ResponseStore

/// Compares random operations with a model of the expected state.
@Suite("Random operations")
struct PropertyTests {
  @Test("Random operations agree with the model", arguments: [UInt64](1...8))
  func randomOperations(seed: UInt64) throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    defer { fixture.finish() }
    var run = ModelRun(fixture: fixture, seed: seed)
    for step in 0..<2500 {
      try run.step()
      run.checkOne()
      if step % 500 == 499 { run.checkAll() }
      // Stop at the first difference, because all later ones would follow from it.
      guard run.agrees else { return }
    }
    fixture.drain()
    run.checkAll()
    #expect(fixture.store.entryCount == run.entryCount)
    run.checkStatistics()
  }
}

/// The expected state of an entry.
private struct ModelEntry {
  var id: Int
  var body: Data
  var storedAt: Date
  var version: String
  var groups: [String]
}

private struct ModelKey: Hashable {
  var url: String
  var partition: String
}

private struct ModelRun {
  let fixture: StoreFixture
  var random: SeededGenerator
  /// By key, then by the language of the variant; nil for a variant without a `Vary` field.
  var model: [ModelKey: [String?: ModelEntry]] = [:]
  /// Responses of earlier lookups, for later updates.
  var held: [(response: StoredResponse, key: ModelKey, language: String?, id: Int)] = []
  var nextID = 0
  var agrees = true
  var history: [String] = []
  /// Sums over all stores that were open on the directory.
  var calls = 0
  var counted = 0
  var stored = 0
  var removed = 0

  init(fixture: StoreFixture, seed: UInt64) {
    self.fixture = fixture
    random = SeededGenerator(seed: seed)
  }

  static let hosts = ["a.example", "b.example", "a.example.org"]
  static let longTail = String(repeating: "x", count: 700)
  static let urls: [String] = hosts.flatMap { host in
    ["http://\(host)/", "https://\(host)/", "http://\(host)/a", "http://\(host)/ab?q=1", "http://\(host):8080/a"]
      + ["1", "2"].map { "http://\(host)/\(longTail)\($0)" }
  }
  static let languages: [String?] = [nil, "de", "en"]
  static let groups = ["g1", "g2"]

  var entryCount: Int { model.values.reduce(0) { $0 + $1.count } }

  mutating func pick<T>(_ values: [T]) -> T { values[Int.random(in: 0..<values.count, using: &random)] }

  mutating func pickKey() -> ModelKey {
    ModelKey(url: pick(Self.urls), partition: pick(["", "", "tenant"]))
  }

  func requestKey(_ key: ModelKey) -> RequestKey { fixture.key(key.url, partition: key.partition) }

  func vary(_ language: String?) -> VaryKey {
    VaryKey(fields: language.map { [VaryKey.Field(name: "accept-language", value: $0)] } ?? [])
  }

  func fields(version: String, groups: [String]) -> HeaderFields {
    var fields = HeaderFields([("X-Version", version)])
    if !groups.isEmpty {
      fields.append(name: "Cache-Groups", value: groups.map { "\"\($0)\"" }.joined(separator: ", "))
    }
    return fields
  }

  // MARK: Operations

  mutating func step() throws {
    switch Int.random(in: 0..<100, using: &random) {
    case 0..<45: store()
    case 45..<55: update()
    case 55..<67:
      history.append("write")
      fixture.store.writePending()
    case 67..<75: fixture.store.maintain()
    case 75..<85: fixture.clock.advance(by: pick([0, 1e-6, 1, 60]))
    case 85..<86: fixture.clock.advance(by: -30)
    case 86..<87: try reopen()
    default: remove()
    }
  }

  private mutating func store() {
    let key = pickKey()
    let language = pick(Self.languages)
    nextID += 1
    let size = pick([0, 10, 1500, 2100, 5000, 20_000])
    let entry = ModelEntry(
      id: nextID, body: pseudorandomData(size, seed: UInt64(nextID)), storedAt: fixture.clock.now,
      version: "v\(nextID)", groups: pick([[], ["g1"], ["g1", "g2"]]))
    fixture.store.store(
      fixture.response(
        key.url, body: entry.body, fields: fields(version: entry.version, groups: entry.groups),
        vary: vary(language), partition: key.partition))
    model[key, default: [:]][language] = entry
    history.append("store \(entry.version) at \(key), \(language ?? "none")")
    calls += 1
  }

  private mutating func update() {
    guard !held.isEmpty else { return }
    let chosen = held[Int.random(in: 0..<held.count, using: &random)]
    nextID += 1
    // Some record headers grow beyond a leaf page, some shrink again.
    let version = "v\(nextID)" + String(repeating: "+", count: pick([0, 0, 600, 3000]))
    let present = model[chosen.key]?[chosen.language]
    let groups = present?.groups ?? []
    fixture.store.update(
      chosen.response, fields: fields(version: version, groups: groups), freshness: fixture.freshness())
    if present?.id == chosen.id { model[chosen.key]?[chosen.language]?.version = version }
    history.append(
      "update to \(version.prefix(9)) of \(chosen.id) at \(chosen.key), \(chosen.language ?? "none"); \(present?.id ?? 0)"
    )
    calls += 1
  }

  private mutating func remove() {
    let store = fixture.store
    let kind = Int.random(in: 0..<12, using: &random)
    history.append("remove \(kind)")
    switch kind {
    case 0..<5:
      let key = pickKey()
      history.append("\(key)")
      store.remove(requestKey(key))
      model[key] = nil
    case 5..<7:
      let url = pick(Self.urls)
      history.append(url)
      store.remove(.target(of: URL(string: url)!)!)
      removeModel { key, _ in key.url == url }
    case 7:
      let date = fixture.clock.now - pick([0, 1e-6, 1, 100])
      store.remove(.since(date))
      removeModel { $1.storedAt > date }
    case 8:
      let host = pick(Self.hosts)
      store.remove(.host(host.uppercased()))
      removeModel { key, _ in URL(string: key.url)!.host == host }
    case 9:
      let prefix = pick(Self.urls)
      store.remove(.urlPrefix(URL(string: prefix)!)!)
      removeModel { key, _ in key.url.hasPrefix(prefix) }
    case 10:
      let group = pick(Self.groups)
      let origin = pick(Self.hosts.map { "http://\($0)/" })
      store.remove(.group(group, ofOrigin: URL(string: origin)!)!)
      removeModel { key, entry in key.url.hasPrefix(origin) && entry.groups.contains(group) }
    default:
      guard Bool.random(using: &random) else { return }
      store.remove(.everything)
      model = [:]
    }
  }

  private mutating func removeModel(where isCovered: (ModelKey, ModelEntry) -> Bool) {
    for (key, variants) in model {
      let kept = variants.filter { !isCovered(key, $0.value) }
      model[key] = kept.isEmpty ? nil : kept
    }
  }

  private mutating func reopen() throws {
    fixture.drain()
    addStatistics()
    try fixture.reopen()
  }

  // MARK: Checks

  mutating func checkOne() {
    let key = pickKey()
    let language = pick(Self.languages)
    if let found = check(key, language), Bool.random(using: &random) {
      held.append(found)
      if held.count > 40 { held.removeFirst() }
    }
  }

  mutating func checkAll() {
    for url in Self.urls {
      for partition in ["", "tenant"] {
        for language in Self.languages { check(ModelKey(url: url, partition: partition), language) }
      }
    }
  }

  @discardableResult
  private mutating func check(
    _ key: ModelKey, _ language: String?
  ) -> (response: StoredResponse, key: ModelKey, language: String?, id: Int)? {
    let found = fixture.store.lookup(requestKey(key)) { vary in
      vary.fields.allSatisfy { $0.value == language }
    }
    let variants = model[key] ?? [:]
    let chosen = language != nil && variants[language] != nil ? language : nil
    let expected = variants[chosen]
    agrees =
      found?.body == expected?.body && found?.fields["x-version"] == expected?.version
      && found?.storedAt == expected?.storedAt
    #expect(
      agrees,
      """
      after \(history.suffix(12)): \(key), \(language ?? "none"): \(found?.fields["x-version"]?.prefix(9) ?? "nothing") \
      instead of \(expected?.version.prefix(9) ?? "nothing")
      """)
    guard let found, let expected else { return nil }
    if !agrees { return nil }
    return (found, key, chosen, expected.id)
  }

  private mutating func addStatistics() {
    let statistics = fixture.store.statistics
    counted += statistics.writes + statistics.updates + statistics.droppedWrites + statistics.supersededWrites
    stored += statistics.writes
    removed += statistics.removals.values.reduce(0, +)
    #expect(statistics.corruptRecords == 0)
    #expect(statistics.queuedByteCount == 0)
  }

  mutating func checkStatistics() {
    addStatistics()
    #expect(counted == calls, "each call is a store, an update, a drop or superseded by a later call")
    #expect(stored - removed == fixture.store.entryCount)
  }
}
