import CacheModel
import FoundationEssentials
import HTTPCaching
import ResponseStore

/// Bodies that are written in pieces, as those that arrive from an origin.
extension ContractRun {
  /// A body that arrives.
  struct Arriving {
    let slot: Int
    /// The position at which it began. Its bytes follow from it.
    let number: UInt64
    let byteCount: Int
    let body: IncomingBody
    /// The removal token from before its first byte.
    let token: (token: RemovalToken, basis: Ledger.Basis)
    var sentByteCount = 0
  }

  private static let maximumArrivingCount = 4

  /// Begins a body, appends to one, ends one and stores its response, or releases one.
  func arrive(_ operation: ContractOperation) throws(Ledger.Violation) {
    let choice = operation.choice % 8
    if arriving.isEmpty || choice < 2 && arriving.count < Self.maximumArrivingCount { return begin(operation) }
    let index = operation.parameter % arriving.count
    switch choice {
    case 0..<5:
      try append([1, 30_000, 65_520, 200_000, 500_000][operation.parameter % 5], at: index)
    case 5, 6: try storeArriving(at: index, operation)
    default:
      note("release a body in slot \(arriving[index].slot)")
      arriving.remove(at: index)
    }
  }

  private func begin(_ operation: ContractOperation) {
    let token = readToken()
    let sizes = [1500, 70_000, 300_000, Content.largeByteCount]
    let new = Arriving(
      slot: operation.slot, number: ledger.takePosition(), byteCount: sizes[operation.parameter % sizes.count],
      body: store.makeIncomingBody(), token: token)
    note("begin a body of \(new.byteCount) bytes in slot \(new.slot)")
    arriving.append(new)
  }

  /// Appends bytes to a body, and removes it if the store refuses them. Returns whether it is still there.
  @discardableResult
  private func append(_ byteCount: Int, at index: Int) throws(Ledger.Violation) -> Bool {
    let item = arriving[index]
    let all = Content.body(number: item.number, slot: item.slot, byteCount: item.byteCount)
    let end = min(item.sentByteCount + byteCount, item.byteCount)
    note("append to a body in slot \(item.slot), up to \(end)")
    guard item.body.write([all.subdata(in: item.sentByteCount..<end)]) else {
      try expectRefusal(at: index, "bytes")
      return false
    }
    arriving[index].sentByteCount = end
    try checkReadable(item.body, of: all[..<end], slot: item.slot)
    return true
  }

  /// Compares the last bytes that can be read of a body with those that were sent.
  private func checkReadable(_ body: IncomingBody, of sent: Data, slot: Int) throws(Ledger.Violation) {
    let readable = body.readableByteCount
    guard readable <= sent.count else {
      throw unsound("\(readable) bytes of a body in slot \(slot) are readable, and \(sent.count) were sent")
    }
    guard readable > 0 else { return }
    let range = max(0, readable - 1000)..<readable
    guard let found = body.read(range) else {
      if mayRefuse { return }
      throw Ledger.Violation(.missing, "the bytes \(range) of a body that arrives in slot \(slot)")
    }
    if found != sent[range] {
      throw Ledger.Violation(.wrong, "the bytes \(range) of a body that arrives in slot \(slot)")
    }
  }

  /// Appends the rest of a body, and stores its response.
  ///
  /// The response is current from its token on. A purge since then covers it, and it may not be found afterwards.
  private func storeArriving(at index: Int, _ operation: ContractOperation) throws(Ledger.Violation) {
    guard try append(.max - arriving[index].sentByteCount, at: index) else { return }
    let item = arriving[index]
    guard item.body.complete() else { return try expectRefusal(at: index, "the end") }
    arriving.remove(at: index)
    let now = isAlone ? clock.now : Ledger.date(ledger.position)
    let version = ledger.beginWrite(to: item.slot, by: process, at: now, basis: item.token.basis)
    note("store version \(version) with a body that arrived in slot \(item.slot)")
    let identity = Content.Identity(
      slot: item.slot, version: version, bodyNumber: item.number, byteCount: item.byteCount,
      paddingByteCount: Content.paddingByteCounts[operation.parameter % Content.paddingByteCounts.count])
    let outcome = item.body.store(
      CacheableResponse(
        status: 200, fields: Content.fields(identity), body: Data(),
        freshness: Content.freshness(at: now, lifetime: 1e6), vary: Content.vary(of: item.slot)),
      for: Content.key(of: item.slot), attachment: nil, askedAt: item.token.token, by: nil)
    ledger.endWrite(version, to: item.slot, by: process, isAccepted: outcome == .stored)
    counts.writes += 1
    if outcome != .stored, !mayRefuse, !ledger.mayBeRemoved(version) {
      throw Ledger.Violation(.missing, "slot \(item.slot): version \(version) was refused: \(outcome)")
    }
  }

  /// Whether the store may refuse a body: it has too little space, or has failed.
  private var mayRefuse: Bool { configuration.isEvicting || ledger.isFaulty || !store.isInPlace }

  private func expectRefusal(at index: Int, _ part: String) throws(Ledger.Violation) {
    let slot = arriving.remove(at: index).slot
    guard mayRefuse else { throw unsound("the store refused \(part) of a body in slot \(slot)") }
    note("the store refused \(part) of a body in slot \(slot)")
  }

  /// Compares the bodies in progress that the store has with those of this run.
  func checkArriving() throws(Ledger.Violation) {
    let expected = arriving.map(\.body.readableByteCount).filter { $0 > 0 }
    let found = (count: store.unfinishedBodyCount, byteCount: store.arrivingByteCount)
    guard found != (expected.count, expected.reduce(0, +)) else { return }
    throw unsound(
      "\(found.count) unfinished bodies of \(found.byteCount) bytes instead of \(expected.count) of "
        + "\(expected.reduce(0, +))")
  }
}
