internal import CLMDB

extension LMDBEnvironment {
  /// A reader slot in use, of any process.
  public struct Reader: Sendable, Hashable {
    /// The process that holds the slot.
    public let processID: Int32
    /// The transaction whose data it reads; nil if the slot is idle.
    public let transactionID: UInt64?
  }

  /// Returns the reader slots that processes hold, including dead ones. `mdb_reader_list`.
  ///
  /// - Complexity: O(slots in use).
  public func readers() -> [Reader] {
    var readers: [Reader] = []
    do throws(LMDBError) {
      try beginCall("mdb_reader_list")
    } catch {
      // The environment was closed, so this process has no readers.
      return readers
    }
    defer { endCall() }
    withUnsafeMutablePointer(to: &readers) { context in
      // One line per reader: process, thread and snapshot. The snapshot of an idle reader is "-".
      _ = mdb_reader_list(
        pointer,
        { line, context in
          guard let line, let readers = context?.assumingMemoryBound(to: [Reader].self) else { return 0 }
          let columns = String(cString: line).split(whereSeparator: { $0 == " " || $0 == "\n" })
          guard columns.count == 3, let processID = Int32(columns[0]) else { return 0 }
          readers.pointee.append(Reader(processID: processID, transactionID: UInt64(columns[2])))
          return 0
        }, context)
    }
    return readers
  }

  /// Returns the transaction ID of the oldest snapshot that a reader of any process uses; `UInt64.max` without readers.
  ///
  /// Pages freed since that transaction cannot be reused. `mdb_reader_list`.
  public func oldestReaderTransactionID() -> UInt64 {
    readers().reduce(.max) { min($0, $1.transactionID ?? .max) }
  }

  /// Frees the reader slots of dead processes, so that the pages of their snapshots can be reused.
  ///
  /// Costs microseconds. It cannot free the slot of a suspended process.
  /// - Returns: The number of freed slots.
  /// - Throws: ``LMDBError``. `mdb_reader_check`.
  @discardableResult
  public func clearStaleReaders() throws(LMDBError) -> Int {
    guard !isForked else { throw LMDBError(code: .forked, function: "mdb_reader_check") }
    try beginCall("mdb_reader_check")
    defer { endCall() }
    var cleared: CInt = 0
    let rc = mdb_reader_check(pointer, &cleared)
    guard rc == 0 else { throw LMDBError(rc, "mdb_reader_check") }
    return Int(cleared)
  }

  /// Ends the pooled read transactions that no thread has used since the last call, and releases their reader slots.
  ///
  /// The next read takes a slot again, which costs some hundred nanoseconds. Call this every few seconds, so that a
  /// process that no longer reads does not occupy slots that others need. Costs some nanoseconds per transaction.
  public func endIdleReads() {
    do throws(LMDBError) {
      try beginCall("mdb_txn_abort")
    } catch {
      // The environment was closed, which ended the transactions.
      return
    }
    defer { endCall() }
    guard !isForked else { return }
    slots.endIdleTransactions(for: ReaderSlot.currentThread)
  }
}
