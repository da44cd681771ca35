import CacheModel
import HTTPCaching

/// Lookups for tools: of committed responses only, and without effect on statistics and eviction.
extension ResponseStore {
  /// Returns the committed response that ``lookup(_:leavingBodiesBeyond:where:)`` would select.
  ///
  /// The body stays in the store unless it is part of the record. This process's first read of a record reads the whole
  /// body, in pieces, to compare its checksum.
  ///
  /// - Complexity: O(log entries).
  package func inspect(_ key: RequestKey, where matches: (VaryKey) -> Bool = { _ in true }) -> StoredResponse? {
    reader.isUsable ? reader.findOnDisk(key, leaving: (0, self), countsUse: false, where: matches) : nil
  }

  /// Returns all committed variants of a key, in no particular order.
  ///
  /// - Complexity: O(log entries) for each variant.
  package func inspectVariants(of key: RequestKey) -> [StoredResponse] {
    var varyKeys: [VaryKey] = []
    reader.forEachVariant(of: key) { vary in
      if !varyKeys.contains(vary) { varyKeys.append(vary) }
    }
    return varyKeys.compactMap { vary in inspect(key) { $0 == vary } }
  }
}

extension StoredResponse {
  /// The numbers of a record on disk.
  package struct RecordDetails: Sendable {
    package let rowID: UInt64
    /// The size of the record header in bytes, with key, Vary key, fields and attachment.
    package let headerByteCount: Int
    /// The size of the caller's attachment in bytes; nil without an attachment.
    package let attachmentByteCount: Int?
    /// Whether the body is part of the record instead of in chunks.
    package let isBodyInline: Bool
    /// The checksum of the record header (XXH3, 64 bits).
    package let headerChecksum: UInt64
    /// The checksum of the body (XXH3, 64 bits).
    package let bodyChecksum: UInt64
    /// The last removal before the response was stored; only later removals cover it.
    package let removalSequence: UInt64
  }

  package var recordDetails: RecordDetails {
    let rowID = rowID
    return withHead { head in
      RecordDetails(
        rowID: rowID, headerByteCount: head.head.count,
        attachmentByteCount: head.hasAttachment ? head.attachment.count : nil, isBodyInline: head.isBodyInline,
        headerChecksum: head.checksum, bodyChecksum: head.bodyChecksum, removalSequence: head.removalSequence)
    }
  }
}
