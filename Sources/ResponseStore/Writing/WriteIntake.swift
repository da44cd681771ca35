import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// Accepts writes on the caller's thread: encodes them, makes them readable in this process, and queues them.
///
/// Owns the holders of copies; the queue and the pending writes have locks of their own. Calls ``Reader``,
/// ``DiskSpace`` for limits, and ``Writer`` in a store without threads.
struct WriteIntake: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  private var queue: Monitor<WriteQueue> { context.queue }
  private var pendingWrites: PendingWrites { context.pendingWrites }
  let space: DiskSpace
  let reader: Reader
  private let copyHolders = CopyHolders()
  let writer: Writer

  /// Adds a holder of copies. Call this before it holds a copy. It is not retained.
  func add(_ holder: any CopyHolder) {
    copyHolders.add(holder)
  }

  /// Whether several caches of this process use the store.
  var hasSeveralHolders: Bool { copyHolders.areSeveral }

  /// Accepts a new response, or drops it. Copies of other holders are dropped on return.
  func store(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]?, askedAt token: RemovalToken?,
    waitsForSpace: Bool, by holder: (any CopyHolder)?
  ) -> StorageOutcome {
    store(response, for: key, askedAt: token, by: holder) { removalSequence in
      accept(
        response, for: key, attachment: attachment, storedAt: context.options.clock(), purpose: .insert,
        removalSequence: removalSequence, waitsForSpace: waitsForSpace)
    }
  }

  /// Accepts a new response whose body is in the store, or drops it. Does not wait for space.
  ///
  /// - Parameter body: The body; nil if it could not be written, so that the response is dropped.
  func store(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]?,
    body: (location: StoredBody.Location, checksum: UInt64)?, askedAt token: RemovalToken?,
    by holder: (any CopyHolder)?
  ) -> StorageOutcome {
    store(response, for: key, askedAt: token, by: holder) { removalSequence in
      guard let body else { return .notStored(.writeDropped) }
      let response = CacheableResponse(
        status: response.status, fields: response.fields, body: Data(), freshness: response.freshness,
        vary: response.vary)
      return accept(
        response, for: key, attachment: attachment, storedAt: context.options.clock(), purpose: .insert,
        bodyChecksum: body.checksum, storedBody: body.location, removalSequence: removalSequence,
        waitsForSpace: false)
    }
  }

  private func store(
    _ response: CacheableResponse, for key: RequestKey, askedAt token: RemovalToken?, by holder: (any CopyHolder)?,
    _ accept: (_ removalSequence: UInt64) -> StorageOutcome
  ) -> StorageOutcome {
    defer { copyHolders.dropCopies(of: key, except: holder) }
    var outcome = StorageOutcome.notStored(.writeDropped)
    if let removalSequence = token.map({ context.removalNumber(in: $0) }) ?? context.removalLog.sequence {
      outcome = accept(removalSequence)
    }
    if outcome != .stored {
      context.counts.count(1, .droppedWrites)
      discardStored(response, for: key)
    }
    return outcome
  }

  /// Accepts an update; returns false if it was dropped. Copies of other holders are dropped on return.
  ///
  /// The body and its checksum are those of the stored response, so the body is neither copied nor hashed. If the
  /// lookup left the body in the store, it is not read.
  func update(
    _ stored: StoredResponse, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken?,
    waitsForSpace: Bool, by holder: (any CopyHolder)?
  ) -> Bool {
    defer { copyHolders.dropCopies(of: stored.key, except: holder) }
    guard let sequence = removalSequence(ofUpdate: stored, askedAt: token) else {
      context.counts.count(1, .droppedWrites)
      return false
    }
    let storedBody = stored.storedBody?.location
    let response = CacheableResponse(
      status: stored.status, fields: fields, body: storedBody == nil ? stored.body : Data(), freshness: freshness,
      vary: stored.vary)
    let rowID = stored.pendingWrite?.rowID ?? stored.rowID
    let outcome = accept(
      response, for: stored.key, attachment: stored.attachment, storedAt: stored.storedAt,
      updatedAt: max(context.options.clock(), stored.updatedAt), purpose: .replaceHead,
      rowID: rowID, original: rowID == 0 ? stored.pendingWrite : nil, bodyChecksum: stored.withHead { $0.bodyChecksum },
      storedBody: storedBody, removalSequence: sequence, waitsForSpace: waitsForSpace)
    if outcome != .stored { context.counts.count(1, .droppedWrites) }
    return outcome == .stored
  }

  /// The removal sequence number of an update: that of its validation, so that soft removals before it no longer cover
  /// the response. Nil if a hard removal has covered the response since it was looked up.
  private func removalSequence(ofUpdate stored: StoredResponse, askedAt token: RemovalToken?) -> UInt64? {
    guard let token else { return stored.removalSequence }
    guard let validation = context.removalNumber(in: token) else { return nil }
    var number = stored.removalSequence
    let effect = context.removals.effect(after: &number, on: stored.key, storedAt: stored.updatedAt) { stored.fields }
    return effect == .removed ? nil : validation
  }

  /// Queues the deletion of a stored response, because a newer response exists that is not stored.
  func discard(_ newer: CacheableResponse, for key: RequestKey, by holder: (any CopyHolder)?) {
    discardStored(newer, for: key)
    copyHolders.dropCopies(of: key, except: holder)
  }

  private func discardStored(_ newer: CacheableResponse, for key: RequestKey) {
    // While the disk tier is off, a stored response is not found.
    var isStored = !reader.isDiskTierOn
    reader.forEachVariant(of: key) { if $0 == newer.vary { isStored = true } }
    if !reader.isDiskTierOn { isStored = true }
    guard isStored, !context.isForked else { return }
    let discard = PendingWrite(
      discarding: newer.vary, of: key, freshness: newer.freshness, storedAt: context.options.clock(),
      removalSequence: context.removalLog.sequence)
    // A discard is small. It may exceed the limit of the queue, because it must be accepted when a response was not.
    let result = queue.withLock { enqueue(discard, in: &$0, limit: context.options.queueByteCountWithDiscards) }
    if case .queued(true, _, _)? = result { queue.wakeAll() }
  }

  private func accept(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]?, storedAt: Date, updatedAt: Date? = nil,
    purpose: PendingWrite.Purpose, rowID: UInt64 = 0, original: PendingWrite? = nil, bodyChecksum: UInt64? = nil,
    storedBody: StoredBody.Location? = nil, removalSequence: UInt64, waitsForSpace: Bool
  ) -> StorageOutcome {
    guard context.isUsable, !context.isForked else { return .notStored(.writeDropped) }
    let bodyLimit = space.maximumBodyByteCount
    guard response.body.count <= bodyLimit else { return refuseBody(limit: bodyLimit) }
    guard FieldCoding.byteCount(of: response.fields) <= Self.maximumPartByteCount,
      attachment?.count ?? 0 <= Self.maximumPartByteCount
    else { return refuseHead(limit: Self.maximumPartByteCount) }
    let write = PendingWrite(
      response, for: key, attachment: attachment, storedAt: storedAt, updatedAt: updatedAt, purpose: purpose,
      rowID: rowID,
      original: original, removalSequence: removalSequence, inlineByteCount: database.inlineByteCount,
      bodyChecksum: bodyChecksum, storedBody: storedBody)
    let headLimit = space.maximumHeadByteCount
    guard write.headByteCount <= headLimit else { return refuseHead(limit: headLimit) }
    guard hasTarget(write), context.removals.effect(on: write) != .removed else { return .notStored(.writeDropped) }
    if !context.options.runsInBackground {
      while queue.withLock({ isFull($0, for: write, pendingWrites.rivals(of: write, in: $0)) }), writer.writePending() {
      }
    }
    let limit = context.options.queueByteCount
    let result =
      waitsForSpace
      ? queue.wait(timeout: context.options.fullQueueTimeout) { enqueue(write, in: &$0, limit: limit) }
      : queue.withLock { enqueue(write, in: &$0, limit: limit) }
    switch result {
    case .queued(let wakesWriter, _, _):
      if wakesWriter { queue.wakeAll() }
      return .stored
    case .refused:
      return .notStored(.writeDropped)
    case nil:
      if waitsForSpace { queue.withLock { $0.stalledDoneCount = $0.doneCount } }
      context.log(.fullQueue, "The write queue is full because the disk is too slow; some responses were not stored")
      return .notStored(.writeDropped)
    }
  }

  /// The maximum size of the fields and of the attachment, which are encoded only below it.
  private static let maximumPartByteCount = 16 << 20

  /// Logs once that responses are dropped because of the size of their bodies.
  private func refuseBody(limit: Int) -> StorageOutcome {
    context.log(
      .oversizedBody,
      "A response was not stored on disk: its body is larger than \(limit) bytes, half of what the capacity holds")
    return .notStored(.bodyTooLarge(limit: limit))
  }

  /// Logs once that responses are dropped because of the size of their record headers, or of the parts of these.
  private func refuseHead(limit: Int) -> StorageOutcome {
    context.log(
      .oversizedHead,
      "A response was not stored on disk: its header fields and URL are larger than \(limit) bytes, the limit for the "
        + "capacity")
    return .notStored(.recordTooLarge(limit: limit))
  }

  /// Whether the record of an update still exists, as a pending write or on disk.
  private func hasTarget(_ write: PendingWrite) -> Bool {
    guard write.isUpdate else { return true }
    if let newest = pendingWrites.newest(of: write.key, vary: write.vary) { return newest.isSameRecord(as: write) }
    // A record without a pending write has a row by now, or was dropped.
    return write.rowID != 0 && reader.hasRecord(ofUpdate: write)
  }

  private enum Enqueued {
    /// The write was queued. The other values are objects to release without the queue's lock.
    case queued(wakesWriter: Bool, superseded: PendingWrite?, written: (PendingWrite?, PendingWrite?))
    case refused
  }

  /// Adds a response to the pending writes and to the queue, so that both have the same order.
  ///
  /// Returns nil if the queue is full.
  private func enqueue(_ write: PendingWrite, in queue: inout WriteQueue, limit: Int) -> Enqueued? {
    guard !queue.isClosing else { return .refused }
    let rivals = pendingWrites.rivals(of: write, in: queue)
    if isFull(queue, for: write, rivals, limit: limit) { return queue.isStalled ? .refused : nil }
    // Only the newest queued write of a variant is committed, unless the writer has taken it.
    let superseded = rivals.queued(in: queue)
    if write.isUpdate, let newest = rivals.sameVariant {
      // If a later response is pending, it replaces the validated one.
      guard newest.isSameRecord(as: write) else { return .refused }
      if let superseded, superseded.purpose == .insert {
        // The updated record has no row yet. Insert the update in its place. Removals by group then use the new fields,
        // so check those that covered the old ones now. An update without the body can be inserted only with the body
        // that the queued write has in the store. Otherwise it is of a record that has a row.
        guard write.storedBody == nil || write.storedBody?.bodyID == superseded.storedBody?.bodyID,
          context.removals.effect(on: superseded) != .removed
        else { return .refused }
        write.becomeRecord()
      }
    }
    pendingWrites.insert(write, inPlaceOf: superseded)
    if let superseded, !superseded.isDiscard { context.counts.count(1, .supersededWrites) }
    // The writer ignores failed discards until it retries them.
    let isFirst = !queue.hasWrites || queue.retriesAt != nil
    queue.add(write, inPlaceOf: superseded)
    return .queued(
      wakesWriter: isFirst || queue.queuedByteCount >= space.batchByteCount, superseded: superseded,
      written: queue.popReleasable())
  }

  /// Whether the queue has no space for a response, or has the maximum number of variants of its key.
  private func isFull(
    _ queue: WriteQueue, for write: PendingWrite, _ rivals: PendingWrites.Rivals, limit: Int? = nil
  ) -> Bool {
    let superseded = rivals.queued(in: queue)
    if write.purpose == .insert, superseded == nil, rivals.queuedCount >= StorageFormat.maximumVariantCountPerKey {
      return true
    }
    return !queue.hasSpace(for: write, inPlaceOf: superseded, limit: limit ?? context.options.queueByteCount)
  }
}
