import StoreContract

/// The ledger of the series `fleet`, with what its machines count.
///
/// The origin takes a position for each response, and another one when it confirms that a response is current. No
/// request that begins after a purge has returned may get a response from before the purge was called.
extension Ledger {
  /// The shared counts.
  enum FleetCount: Int {
    case isOver, requests, hits, shared, purges, purgesByWait, unconfirmed, unposted, failures, violations
    case longestPurge
  }

  /// Maps the ledger of a scenario.
  static func fleet(path: String, machineCount: Int) -> Ledger {
    let ledger = Ledger(path: path, Shape(slotCount: FleetContent.keyCount, processCount: machineCount))
    // A missing response is fetched again.
    ledger.isEvicting = true
    return ledger
  }

  subscript(_ count: FleetCount) -> UInt64 { word(count.rawValue) }
  func count(_ count: FleetCount) { addToWord(count.rawValue) }
  func raise(_ count: FleetCount, to value: UInt64) { raiseWord(count.rawValue, to: value) }

  /// Tells the machines to stop.
  func end() { raise(.isOver, to: 1) }
  var isOver: Bool { self[.isOver] > 0 }

  /// The words of each machine.
  private enum MachineWord: Int {
    case isLeaving, served, shared

    func number(of machine: Int) -> Int { 24 + 8 * rawValue + machine }
  }

  /// Whether a machine has been told to close its cache.
  func isLeaving(_ machine: Int) -> Bool { word(MachineWord.isLeaving.number(of: machine)) > 0 }
  func setLeaving(_ machine: Int, _ isLeaving: Bool) {
    setWord(MachineWord.isLeaving.number(of: machine), isLeaving ? 1 : 0)
  }

  /// Records that a machine with a lease has served a stored response.
  func countServed(by machine: Int) { addToWord(MachineWord.served.number(of: machine)) }
  func servedCount(_ machine: Int) -> UInt64 { word(MachineWord.served.number(of: machine)) }

  /// Records how many responses of other machines a machine has used.
  func setSharedCount(_ count: Int, of machine: Int) {
    raiseWord(MachineWord.shared.number(of: machine), to: UInt64(count))
  }
  func sharedCount(_ machine: Int) -> UInt64 { word(MachineWord.shared.number(of: machine)) }
}
