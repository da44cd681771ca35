import CacheModel
public import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB
import Synchronization

/// The body of a stored response, read from the store in pieces.
///
/// It pins no snapshot and no page. If the response is removed by any process, evicted or replaced, the rest of the
/// body cannot be read. All bytes belong to the response that was looked up, and match its checksums: those of a body
/// of more than 1 MiB are compared when they are read, in blocks of 64 KiB.
///
/// Safe from any thread.
public final class StoredBody: Sendable {
  /// The rows of a body in `bodies`. No other body ever has the same ID.
  struct Location: Sendable {
    let byteCount: Int
    let bodyID: UInt64
    let chunks: ChunkLayout
    /// The row of the record; 0 if it is not known.
    var rowID: UInt64 = 0
    /// The right to write the body, for one that no committed record has yet.
    var claim: BodyClaim?
  }

  /// The body's size in bytes.
  public var byteCount: Int { location.byteCount }
  let location: Location
  /// The response whose body this is.
  private let response: StoredResponse
  private let reader: Reader
  /// Keeps the store open.
  private let store: ResponseStore
  /// No removal up to this number covers the response.
  private let comparedRemoval: Atomic<UInt64>

  init(_ location: Location, of response: StoredResponse, in store: ResponseStore) {
    self.location = location
    self.response = response
    self.store = store
    reader = store.reader
    comparedRemoval = Atomic(response.removalSequence)
  }

  /// Copies a part of the body. Returns nil if the response was removed or replaced, or cannot be read.
  ///
  /// May wait for the disk. A soft removal has no effect.
  ///
  /// - Parameter range: A range within the body; any other traps. Use at most a few hundred kilobytes: during the copy,
  ///   no freed page can be reused.
  public func read(_ range: Range<Int>) -> Data? {
    guard range.lowerBound >= 0, range.upperBound <= byteCount else { Trap.outsideBody(range, byteCount) }
    return isRemoved ? nil : reader.copyBytes(range, of: location)
  }

  /// Whether a removal covers the response. The rows of its body can be deleted much later.
  private var isRemoved: Bool {
    var number = comparedRemoval.load(ordering: .relaxed)
    let effect = reader.removals.effect(after: &number, on: response.key, storedAt: response.updatedAt) {
      response.fields
    }
    if effect == .removed { return true }
    comparedRemoval.store(number, ordering: .relaxed)
    return false
  }
}

extension Reader {
  /// Copies a part of a body; nil if it no longer exists, or does not match its checksums.
  ///
  /// - Parameter verifies: Whether to compare a large body's blocks with their checksums.
  func copyBytes(_ range: Range<Int>, of body: StoredBody.Location, verifies: Bool = true) -> Data? {
    guard isUsable, !range.isEmpty else { return range.isEmpty ? Data() : nil }
    let verifies = verifies && body.byteCount > BlockTable.thresholdByteCount
    // A checksum is that of a whole block.
    let blockByteCount = BlockTable.blockByteCount
    let copied =
      verifies
      ? range.lowerBound / blockByteCount
        * blockByteCount..<min(
          (range.upperBound + blockByteCount - 1) / blockByteCount * blockByteCount, body.byteCount)
      : range
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) -> Data? in
        var (keys, parts): ([UnsafeRawBufferPointer], [UnsafeRawBufferPointer]) = ([], [])
        let indices = body.chunks.indices(of: copied)
        let isWhole = try database.forEachChunk(indices, of: body.bodyID, body.chunks, in: transaction) {
          (index, key, chunk) in
          let start = body.chunks.range(index).lowerBound
          let part = copied.clamped(to: body.chunks.range(index))
          keys.append(key)
          parts.append(UnsafeRawBufferPointer(rebasing: chunk[part.lowerBound - start..<part.upperBound - start]))
        }
        guard isWhole else { return nil }
        guard let memory = malloc(copied.count) else { return nil }
        do throws(LMDBError) {
          try database.environment.copyFromFile(parts, to: memory, in: transaction)
        } catch {
          free(memory)
          throw error
        }
        database.environment.releaseResidentPages(near: keys, in: transaction)
        // Only now: for a few bytes, `Data` copies them and frees the memory at once.
        let copy = Data(bytesNoCopy: memory, count: copied.count, deallocator: .free)
        guard verifies else { return copy }
        guard try matchesTable(copy, at: copied.lowerBound, of: body.bodyID, in: transaction) else {
          if body.rowID != 0 { reportCorruptRecord(body.rowID) }
          return nil
        }
        let start = copy.startIndex + range.lowerBound - copied.lowerBound
        return copied == range ? copy : copy.subdata(in: start..<start + range.count)
      }
    } catch {
      context.readFailed(error)
      return nil
    }
  }

  /// Whether blocks of a body match their checksums in its table.
  ///
  /// - Parameter start: The position of the bytes in the body, which is that of a block.
  private func matchesTable(
    _ bytes: Data, at start: Int, of bodyID: UInt64, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> Bool {
    let first = start / BlockTable.blockByteCount
    let checksums = bytes.withUnsafeBytes { bytes in
      stride(from: 0, to: bytes.count, by: BlockTable.blockByteCount).map { offset in
        let end = min(offset + BlockTable.blockByteCount, bytes.count)
        return XXHash.digest64(UnsafeRawBufferPointer(rebasing: bytes[offset..<end]))
      }
    }
    var index = 0
    while index < checksums.count {
      let (row, offset) = (first + index).quotientAndRemainder(dividingBy: BlockTable.blockCountPerRow)
      let count = min(BlockTable.blockCountPerRow - offset, checksums.count - index)
      let expected = checksums[index..<index + count]
      let key = BlockTable.key(bodyID: bodyID, row: row)
      let matches = try database.bodies.withValue(for: key, in: transaction) { (value) throws(LMDBError) in
        value.withUnsafeBytes { BlockTable.checksums($0, offset..<offset + count)?.elementsEqual(expected) }
      }
      guard matches == true else { return false }
      index += count
    }
    return true
  }
}
