import FoundationEssentials

/// A removal that is not in a log yet.
package struct Removal: Sendable, Hashable {
  /// The effect on the responses that a removal covers.
  package enum Effect: Sendable, Hashable {
    /// They are removed.
    case remove
    /// They become stale.
    case makeStale
    /// They may have been removed on another machine: every use requires validation, and no stale window counts.
    case suspect

    package func mode(at now: Date) -> RemovalMode {
      switch self {
      case .remove: .hard
      case .makeStale: .soft(at: now)
      case .suspect: .suspect
      }
    }
  }

  /// The responses that it covers.
  package var scope: RemovalScope
  /// The effect on them.
  package var effect: Effect

  /// Creates a removal.
  package init(_ scope: RemovalScope, effect: Effect = .remove) {
    self.scope = scope
    self.effect = effect
  }

  /// Creates a hard or a soft removal.
  package init(_ scope: RemovalScope, isSoft: Bool) {
    self.init(scope, effect: isSoft ? .makeStale : .remove)
  }
}

extension RemovalScope {
  /// The scope for other machines, in at most 480 bytes. It covers at least as much.
  package var encodedBytes: [UInt8] { abbreviated.encoded }

  /// Decodes ``encodedBytes``; nil if they are of a later version.
  package init?(encodedBytes bytes: [UInt8]) {
    guard let scope = bytes.withUnsafeBytes({ RemovalScope(encoded: $0) }) else { return nil }
    self = scope
  }

  /// Decodes ``encodedBytes``; nil if they are of a later version.
  package init?(encodedBytes bytes: Slice<UnsafeRawBufferPointer>) {
    self.init(encoded: UnsafeRawBufferPointer(rebasing: bytes))
  }
}
