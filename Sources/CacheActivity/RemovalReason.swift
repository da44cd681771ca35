/// The reason why an entry left the store.
public enum RemovalReason: String, Sendable, CaseIterable {
  /// A newer response replaced the entry.
  case replaced
  /// The entry was evicted for space.
  case overCapacity
  /// Its key had too many variants.
  case tooManyVariants
  /// The entry was removed on request.
  case requested
  /// Its bytes did not match their checksum.
  case corrupt

  /// Whether the store removed the entry by itself, for space or because its key had too many variants.
  public var isEviction: Bool {
    switch self {
    case .overCapacity, .tooManyVariants: true
    case .replaced, .requested, .corrupt: false
    }
  }
}
