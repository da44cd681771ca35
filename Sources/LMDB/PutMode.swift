internal import CLMDB

/// What storing does about the keys that are there.
public enum PutMode: Sendable, Hashable {
  /// Stores, and replaces the value of a key that is there. The default.
  case upsert

  /// Stores only if the key is not there. `MDB_NOOVERWRITE`.
  case insert

  /// As `upsert`, and fills pages to the end when the key is above all others. `MDB_APPEND`.
  case append

  var flags: UInt32 {
    switch self {
    case .upsert: 0
    case .insert: UInt32(MDB_NOOVERWRITE)
    case .append: UInt32(MDB_APPEND)
    }
  }
}
