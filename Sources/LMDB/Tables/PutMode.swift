internal import CLMDB

/// The treatment of existing keys when storing.
public enum PutMode: Sendable, Hashable {
  /// Stores the value, and replaces the value of an existing key. The default.
  case upsert

  /// Stores the value only if the key does not exist. `MDB_NOOVERWRITE`.
  case insert

  /// Stores like `upsert`, and fills pages completely if the key is above all others. `MDB_APPEND`.
  case append

  var flags: UInt32 {
    switch self {
    case .upsert: 0
    case .insert: UInt32(MDB_NOOVERWRITE)
    case .append: UInt32(MDB_APPEND)
    }
  }
}
