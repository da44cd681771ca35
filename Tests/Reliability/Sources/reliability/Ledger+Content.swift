import FoundationEssentials
import ResponseStore
import StoreContract

/// The ledger of the series that store ``Content``. The number of a key is its slot.
extension Ledger {
  /// Maps the ledger of a series.
  convenience init(path: String, keyCount: Int) {
    self.init(
      path: path,
      Shape(slotCount: keyCount, processCount: ConcurrentWorker.processCount, entryCount: 1 << 18))
  }

  /// Stores the next version of a key.
  func store(_ key: Int, by process: Int = 0, in store: ResponseStore, _ content: Content) {
    let version = beginWrite(to: key, by: process)
    let isAccepted = store.store(content.response(key, version: version, at: Self.date(version)))
    endWrite(version, to: key, by: process, isAccepted: isAccepted)
  }

  /// Flushes a store; ends the process if that fails.
  func flush(_ store: ResponseStore, by process: Int = 0) {
    let accepted = beginFlush(by: process)
    do throws(StoreError) { try store.flush() } catch { fail("flush failed: \(error)") }
    endFlush(accepted, by: process, isDurable: true)
  }

  /// Looks a key up and judges the result; ends the process if it is wrong.
  ///
  /// - Returns: Whether there is a response.
  @discardableResult
  func check(_ key: Int, by process: Int = 0, _ content: Content, lookup: () -> StoredResponse?) -> Bool {
    let facts = facts(key, by: process)
    let found = countingLookup(lookup)
    if let violation = violation(found, key, content, after: facts) { fail("\(violation)") }
    return found != nil
  }

  /// Returns the promise that a lookup of a key breaks.
  func violation(_ found: StoredResponse?, _ key: Int, _ content: Content, after facts: Facts) -> Violation? {
    guard let found else { return violation(nil, after: facts) }
    guard let answer = content.answer(of: found, key: key) else { return Violation(.wrong, "key \(key)") }
    return violation(answer, after: facts)
  }
}
