import FoundationEssentials
import HTTPCaching

/// A stored response, copied out of the store: it stays what it is whatever happens there.
public struct StoredResponse: Sendable, StoredResponseView {
  /// The record's number; 0 while the response waits for the writer.
  public let rowID: UInt64
  /// What the response answers.
  public let key: RequestKey
  /// When the response was stored; what ``ResponseStore/removeResponses(since:)`` compares with.
  public let storedAt: Date
  /// The body.
  public let body: Data
  /// Date, age and lifetime.
  public let facts: FreshnessFacts
  /// The HTTP status code; 0 for a response that is not HTTP.
  public let status: Int
  /// Whether other variants are stored for the key.
  public let hasOtherVariants: Bool
  /// The head's bytes, from which the rest is decoded when it is asked for.
  let head: Head
  /// Where a response that waited for the writer was going to stand; nil for one that was read from the disk.
  let row: RowReference?
  /// The last removal before it was read, or staged. A later one may cover it.
  let snapshot: UInt64

  /// Where the head's bytes are.
  enum Head: Sendable {
    /// In a response that waits for the writer.
    case staged(HeadRecord)
    /// In a copy of the record.
    case copied(CopiedRecord)

    func layout<R>(_ body: (HeadLayout) -> R) -> R {
      switch self {
      case .staged(let record): record.layout(body)
      case .copied(let record): record.withHead(body)
      }
    }
  }

  /// The header fields. Decoded at each call.
  public var fields: HTTPFields { head.layout { FieldCoding.decodeFields($0.fields) } }
  /// The request fields by which this variant was chosen. Decoded at each call.
  public var vary: VarySelection { head.layout { FieldCoding.decodeVary($0.vary) } }
  /// Bytes of the layer above, as they were given.
  public var attachment: [UInt8]? { head.layout { $0.hasAttachment ? [UInt8]($0.attachment) : nil } }
  /// The body's size in bytes.
  public var bodyByteCount: Int { body.count }
}
