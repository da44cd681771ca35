import FoundationEssentials

/// A removal: the responses that it covers, and what becomes of them, from when on.
///
/// The API makes it. The removal log, the tombstones and the log of a fleet have its encoding, and lookups compare with
/// it.
package struct Removal: Sendable, Hashable {
  /// The responses that it covers.
  package var scope: RemovalScope
  /// The effect on them: removed, or stale since a time.
  package var effect: RemovalEffect

  /// Creates a removal, a hard one by default.
  package init(_ scope: RemovalScope, _ effect: RemovalEffect = .removed) {
    self.scope = scope
    self.effect = effect
  }

  /// Whether the responses are removed, and not only stale.
  package var isHard: Bool { effect == .removed }

  // MARK: Encoding

  /// The maximum size of ``encoded``.
  package static let maximumByteCount = 480
  private static let hardKind: UInt8 = 0
  private static let softKind: UInt8 = 1

  /// The removal in bytes. A scope that is too long is abbreviated (``RemovalScope/abbreviated``).
  package var encoded: [UInt8] {
    var writer = ByteWriter()
    if case .stale(let date) = effect {
      writer.append(Self.softKind)
      writer.append(date.timeIntervalSinceReferenceDate)
    } else {
      writer.append(Self.hardKind)
    }
    return writer.bytes + scope.abbreviated.encoded
  }

  /// Decodes ``encoded``; nil if the bytes are malformed. A removal of an unknown kind counts as one of everything.
  package init?(encoded bytes: UnsafeRawBufferPointer) {
    var reader = ByteReader(bytes)
    guard let kind = reader.read(UInt8.self) else { return nil }
    var effect = RemovalEffect.removed
    switch kind {
    case Self.hardKind: break
    case Self.softKind:
      guard let seconds = reader.readDouble() else { return nil }
      effect = .stale(since: Date(timeIntervalSinceReferenceDate: seconds))
    default:
      self.init(.everything)
      return
    }
    guard let scope = RemovalScope(encoded: UnsafeRawBufferPointer(rebasing: bytes[reader.offset...])) else {
      return nil
    }
    self.init(scope, effect)
  }
}
