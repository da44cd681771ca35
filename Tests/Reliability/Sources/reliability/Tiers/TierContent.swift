import Foundation
import StoreContract

/// The keys, URLs and bodies of the series `tiers`.
///
/// A body starts with its key, its version, the process that stored or fetched it, and the time. All further bytes
/// follow from these, so that readers can check every byte.
struct TierContent: Sendable {
  /// The distribution of body sizes.
  enum Sizes: Sendable {
    /// Up to 4 KiB, so that the memory tier holds everything.
    case small
    /// Up to the capacities of the memory tiers (1 or 4 MiB), often close to them.
    case aroundMemoryLimits
    /// Either small or about 4 MiB.
    case upToFourMiB
    /// More than the 1 MiB from which on bodies of the origin are written while they arrive, up to 5 MB.
    case large
  }

  /// The identity of a stored response.
  struct Identity: Equatable, Sendable {
    var key: Int
    /// The tick at which the write began, or at which the origin received the request; a later one is newer.
    var version: UInt64
    /// The process that stored or fetched it.
    var process: Int
    /// The tick at which the storing or fetching call began.
    var began: UInt64
    /// The time of the monotonic clock in microseconds.
    var time: UInt64
  }

  let storedKeyCount: Int
  let fetchedKeyCount: Int
  let sizes: Sizes
  let port: Int

  static let headByteCount = 56
  static let prefixCount = 3
  static let groupCount = 3
  /// The number of hosts of stored keys; the origin is an additional host.
  static let storedHostCount = 3

  var keyCount: Int { storedKeyCount + fetchedKeyCount }
  func isFetched(_ key: Int) -> Bool { key >= storedKeyCount }

  func host(of key: Int) -> Int { isFetched(key) ? Self.storedHostCount : key % Self.storedHostCount }
  func prefix(of key: Int) -> Int { key / Self.storedHostCount % Self.prefixCount }
  func group(of key: Int) -> Int { (key / 2) % Self.groupCount }

  func hostName(_ host: Int) -> String { host == Self.storedHostCount ? "127.0.0.1" : "h\(host).example" }

  func prefixURL(host: Int, prefix: Int) -> URL {
    let port = host == Self.storedHostCount ? ":\(port)" : ""
    guard let url = URL(string: "http://\(hostName(host))\(port)/p\(prefix)/") else { fail("no URL") }
    return url
  }

  func url(_ key: Int) -> URL {
    guard let url = URL(string: "\(key)?q=\(key)", relativeTo: prefixURL(host: host(of: key), prefix: prefix(of: key)))
    else { fail("no URL") }
    return url.absoluteURL
  }

  /// Returns the key of a request target at the origin.
  static func key(ofTarget target: String) -> Int? {
    target.split(separator: "=").last.flatMap { Int($0) }
  }

  func fields(_ identity: Identity) -> [String: String] {
    [
      "Cache-Control": "max-age=31536000", "Cache-Groups": "\"g\(group(of: identity.key))\"",
      "X-Version": "\(identity.version)",
    ]
  }

  // MARK: Bodies

  private func byteCount(_ identity: Identity) -> Int {
    let dice = SeededRandom.mixed(UInt64(identity.key) &* 1_000_003 &+ identity.version)
    let spread = Int(dice >> 32)
    switch sizes {
    case .small: return Self.headByteCount + spread % 4096
    case .large: return isFetched(identity.key) ? 1_200_000 + spread % 3_800_000 : 1000 + spread % 1_000_000
    case .upToFourMiB: return dice % 2 == 0 ? 200_000 + spread % 200_000 : (4 << 20) - spread % 4096
    case .aroundMemoryLimits:
      // Bodies of the origin stay below the size that a session may store.
      let limit = isFetched(identity.key) || dice % 8 > 1 ? 1 << 20 : 4 << 20
      switch dice % 10 {
      case 0..<6: return Self.headByteCount + spread % 16_384
      case 6..<8: return limit / 4 + spread % (limit / 4)
      default: return limit - 1024 + spread % 2048
      }
    }
  }

  func body(_ identity: Identity) -> Data {
    let byteCount = byteCount(identity)
    var body = Data(count: byteCount)
    body.withUnsafeMutableBytes { bytes in
      let head = [
        UInt64(identity.key), identity.version, UInt64(identity.process), identity.began, identity.time,
        UInt64(byteCount), 0,
      ]
      head.withUnsafeBytes { bytes.copyMemory(from: $0) }
      var word = Self.seed(identity)
      for offset in stride(from: Self.headByteCount, to: byteCount - 7, by: 8) {
        bytes.storeBytes(of: word, toByteOffset: offset, as: UInt64.self)
        word &+= Self.step
      }
    }
    return body
  }

  /// Returns the identity in a body, or nil if any byte differs from the stored body.
  func identity(of body: Data, for key: Int) -> Identity? {
    body.withUnsafeBytes { bytes -> Identity? in
      guard bytes.count >= Self.headByteCount else { return nil }
      let head = (0..<7).map { bytes.loadUnaligned(fromByteOffset: $0 * 8, as: UInt64.self) }
      let identity = Identity(
        key: key, version: head[1], process: Int(truncatingIfNeeded: head[2]), began: head[3], time: head[4])
      guard head[0] == UInt64(key), head[5] == UInt64(bytes.count), byteCount(identity) == bytes.count else {
        return nil
      }
      var word = Self.seed(identity)
      var difference: UInt64 = 0
      var offset = Self.headByteCount
      while offset + 8 <= bytes.count {
        difference |= bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self) ^ word
        word &+= Self.step
        offset += 8
      }
      while offset < bytes.count {
        difference |= UInt64(bytes[offset])
        offset += 1
      }
      return difference == 0 ? identity : nil
    }
  }

  private static let step: UInt64 = 0x9E37_79B9_7F4A_7C15

  private static func seed(_ identity: Identity) -> UInt64 {
    SeededRandom.mixed(UInt64(identity.key) << 48 ^ identity.version << 8 ^ UInt64(identity.process) ^ identity.time)
  }
}
