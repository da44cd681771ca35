import FoundationEssentials
import HTTPCaching

// The fuzzer calls the decoders of records, without a store.
@testable import ResponseStore

/// Decodes a record as if read from a corrupt file.
///
/// Every member can be read. Fields and Vary key stay the same when they are encoded and decoded again.
@Sendable func records(_ bytes: UnsafeRawBufferPointer) {
  let fields = FieldCoding.decodeFields(bytes)
  precondition(coded(fields) == fields)
  let vary = FieldCoding.decodeVary(bytes)
  let again = FieldCoding.encode(vary)
  again.withUnsafeBytes { precondition(FieldCoding.decodeVary($0) == vary) }

  guard let record = RecordHeaderView(bytes) else { return }
  let freshness = record.freshness
  let now = Date(timeIntervalSince1970: 1_800_000_000)
  _ = freshness.wholeAge(at: now)
  _ = freshness.isFresh(at: now)
  _ = FieldCoding.decodeFields(record.fields)
  _ = FieldCoding.decodeVary(record.vary)
  _ = record.attachment.count
  _ = record.storedAt
  _ = record.status
  _ = record.hasRightChecksum
  _ = record.key.count
  _ = record.isBodyInline ? record.inlineBody.count : 0
}

private func coded(_ fields: HeaderFields) -> HeaderFields {
  var bytes = [UInt8](repeating: 0, count: FieldCoding.byteCount(of: fields))
  let end = bytes.withUnsafeMutableBytes { FieldCoding.write(fields, at: 0, of: $0) }
  precondition(end == bytes.count)
  return bytes.withUnsafeBytes { FieldCoding.decodeFields($0) }
}
