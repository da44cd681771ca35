import CacheModel
import Synchronization

/// The purges that this process has read from the fleet file, indexed so that the check of a shared response takes the
/// same time after any number of purges.
///
/// The index has the number of the last purge for each hash of a scope. Two scopes with the same hash make a response
/// count as purged at worst.
final class PurgeHistory: Sendable {
  private let file: FleetFile
  private let index = Mutex(Index())

  /// The number of purges that are remembered; earlier ones count as covering everything.
  private static let maximumCount: UInt64 = 8192

  init(_ file: FleetFile) {
    self.file = file
  }

  /// Whether a purge of an epoch after a number, up to the last one, may cover a response.
  ///
  /// - Parameters:
  ///   - number: The position at which the response was requested.
  ///   - last: The last purge of the epoch, as ``FleetFile/lastAnnounced(inEpochOf:)`` returns it.
  ///   - isEquivalent: Whether the response is also one for equivalent URLs (No-Vary-Search).
  ///   - groups: Returns the cache groups of the response. Called only if there are purges of groups.
  func mayCover(
    _ key: RequestKey, after number: UInt64, upTo last: UInt64, inEpoch epoch: UInt64, isEquivalent: Bool,
    groups: () -> [String]
  ) -> Bool {
    guard number < last else { return false }
    return index.withLock { index in
      index.catchUp(to: last, inEpoch: epoch, in: file)
      if index.mayCover(key.bytes, after: number, groups: groups) { return true }
      return isEquivalent && index.mayCoverEquivalents(of: key, after: number)
    }
  }

  private struct Index {
    private var epoch: UInt64 = 0
    /// All purges from ``floor`` + 1 to this one are in the index.
    private var last: UInt64 = 0
    private var floor: UInt64 = 0
    /// The last purge that covers everything.
    private var everything: UInt64 = 0
    /// The last purge for each hash of a scope.
    private var numbers: [UInt64: UInt64] = [:]
    /// The lengths of the prefixes, and of the origins of groups, for which there is a purge.
    private var prefixLengths = Lengths()
    private var originLengths = Lengths()
    private var digested: [RemovalScope: UInt64] = [:]

    mutating func catchUp(to newest: UInt64, inEpoch epoch: UInt64, in file: FleetFile) {
      if self.epoch != epoch {
        self = Index()
        self.epoch = epoch
      }
      guard newest > last else { return }
      if newest - last > PurgeHistory.maximumCount { forget(upTo: newest - PurgeHistory.maximumCount) }
      while last < newest {
        last += 1
        if let scope = file.scope(ofPurge: last, inEpoch: epoch) { insert(scope) } else { forget(upTo: last) }
      }
      if numbers.count > 2 * PurgeHistory.maximumCount { forget(upTo: last - PurgeHistory.maximumCount) }
    }

    /// Purges up to a number, of which some are unknown, cover everything from now on.
    private mutating func forget(upTo number: UInt64) {
      last = max(last, number)
      floor = number
      numbers = numbers.filter { $0.value > number }
      digested = digested.filter { $0.value > number }
    }

    private mutating func insert(_ scope: RemovalScope) {
      switch scope {
      // A date covers all responses of before: when another machine stored its copy is not known.
      case .everything, .since: everything = last
      case .prefix(let bytes), .target(let bytes): insert(prefix: bytes)
      // All partitions, which covers more.
      case .resource(let bytes): insert(prefix: Array(RequestKey(storedBytes: bytes).targetPrefix))
      case .key(let bytes): numbers[ScopeHash(bytes).value(.key)] = last
      case .group(let origin, let name):
        originLengths.insert(origin.count)
        numbers[ScopeHash(origin).value(.group, name)] = last
      case .digested, .digestedGroup: digested[scope] = last
      }
    }

    private mutating func insert(prefix bytes: [UInt8]) {
      prefixLengths.insert(bytes.count)
      numbers[ScopeHash(bytes).value(.prefix)] = last
      if let path = RequestKey.path(ofURLsWith: bytes) { numbers[ScopeHash(path).value(.path)] = last }
    }

    /// Whether a purge of an equivalent URL may cover a response. A purge of a whole path also has its prefix.
    func mayCoverEquivalents(of key: RequestKey, after number: UInt64) -> Bool {
      if let last = numbers[ScopeHash(key.path).value(.path)], last > number { return true }
      let space = key.searchSpace.bytes
      return digested.contains { scope, last in
        last > number && scope.covers(key: space, storedAt: .distantFuture) { [] }
      }
    }

    func mayCover(_ key: [UInt8], after number: UInt64, groups: () -> [String]) -> Bool {
      if number < floor || number < everything { return true }
      func isCovered(by hash: UInt64) -> Bool { numbers[hash].map { $0 > number } ?? false }
      let groups = originLengths.isEmpty && digested.isEmpty ? [] : groups()
      var hash = ScopeHash()
      for length in 0...key.count {
        if length > 0 { hash.append(key[length - 1]) }
        if prefixLengths.contains(length), isCovered(by: hash.value(.prefix)) { return true }
        if !groups.isEmpty, originLengths.contains(length),
          groups.contains(where: { isCovered(by: hash.value(.group, $0)) })
        {
          return true
        }
      }
      if isCovered(by: hash.value(.key)) { return true }
      return digested.contains { scope, last in
        last > number && scope.covers(key: key, storedAt: .distantFuture) { groups }
      }
    }
  }

  /// A set of lengths, which are at most that of an encoded scope.
  private struct Lengths {
    private var flags = [Bool](repeating: false, count: FleetFile.maximumScopeByteCount + 1)
    private(set) var isEmpty = true

    mutating func insert(_ length: Int) {
      flags[length] = true
      isEmpty = false
    }

    func contains(_ length: Int) -> Bool { length < flags.count && flags[length] }
  }
}

/// A hash of the bytes of a scope, which has a value for each beginning of a key (FNV-1a).
private struct ScopeHash {
  enum Kind: UInt8 { case prefix, key, group, path }

  private var state: UInt64 = 0xCBF2_9CE4_8422_2325

  init() {}

  init(_ bytes: some Sequence<UInt8>) {
    for byte in bytes { append(byte) }
  }

  @inline(__always)
  mutating func append(_ byte: UInt8) { state = (state ^ UInt64(byte)) &* 0x0000_0100_0000_01B3 }

  /// The hash of the bytes so far as a scope of a kind, with the name of a group.
  func value(_ kind: Kind, _ name: String = "") -> UInt64 {
    var hash = self
    // No key has the byte 0xFF, which UTF-8 does not contain.
    hash.append(0xFF)
    hash.append(kind.rawValue)
    for byte in name.utf8 { hash.append(byte) }
    return hash.state
  }
}
