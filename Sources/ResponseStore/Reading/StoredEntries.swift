import CacheModel
public import FoundationEssentials
public import HTTPCaching
import LMDB

/// The stored entries of a store, read in batches of up to 1,024. The records of key spaces are not responses, and left
/// out.
///
/// Each batch is read in a transaction of its own. Nothing is held between two elements, so the loop's body may take
/// long. Entries that are stored, removed or moved by eviction in the meantime may be missing; in the order
/// ``EntryOrder/stored`` a moved entry may appear twice.
public struct StoredEntries: Sequence, Sendable {
  let store: ResponseStore
  let order: EntryOrder
  let scope: RemovalScope

  /// Begins at the first entry.
  public func makeIterator() -> Iterator { Iterator(self) }

  /// An iterator over the entries. Use it on one thread at a time.
  public struct Iterator: IteratorProtocol {
    private let store: ResponseStore
    private var walk: EntryWalk?
    private var batch: [StoredResponseInfo] = []
    private var position = 0

    init(_ entries: StoredEntries) {
      store = entries.store
      if store.context.isUsable { walk = EntryWalk(entries) }
    }

    /// Returns the next entry; nil at the end, or if the store cannot be read.
    public mutating func next() -> StoredResponseInfo? {
      while true {
        while position == batch.count {
          guard store.context.isUsable else { return nil }
          do throws(LMDBError) {
            guard let next = try walk?.nextBatch() else { return nil }
            (batch, position) = (next, 0)
          } catch {
            store.context.readFailed(error)
            return nil
          }
        }
        defer { position += 1 }
        if !batch[position].key.isKeySpace { return batch[position] }
      }
    }
  }
}

extension ResponseStore {
  /// The committed entries. Writes that are still queued are not included; call ``flush()`` first for those.
  ///
  /// - Complexity: O(entries) for all of them; constant memory.
  public func entries(in order: EntryOrder = .stored) -> StoredEntries { entries(in: order, coveredBy: .everything) }

  /// Like ``entries(in:)``, and tells of each entry whether a removal of `scope` would cover it.
  package func entries(in order: EntryOrder = .stored, coveredBy scope: RemovalScope) -> StoredEntries {
    StoredEntries(store: self, order: order, scope: scope)
  }
}

/// A stored response without its header fields and body.
public struct StoredResponseInfo: Sendable {
  /// The record's row ID. It does not show the age: eviction moves records that it keeps.
  public let rowID: UInt64
  /// The cache key.
  public let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  public let status: Int
  /// When it was stored.
  public let storedAt: Date
  /// When a validation last updated it, or else when it was stored.
  public let updatedAt: Date
  /// Date, age and lifetime.
  public let freshness: FreshnessInfo
  /// The request fields of its Vary key.
  public var varyNames: [String] { vary.ofRequest.fields.map(\.name) }
  package let vary: VaryKey
  /// The body's size in bytes.
  public let bodyByteCount: Int
  /// The value of its field `Content-Type`; nil if it has none.
  package let contentType: String?
  /// Whether the scope of the walk covers it.
  package let isCovered: Bool
}

/// The order in which a walk visits the entries.
public enum EntryOrder: Sendable {
  /// The order on disk, which is the fastest.
  case stored
  /// By the time at which they were last updated or stored, oldest first.
  case time
}
