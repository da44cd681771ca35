import CacheModel
import FoundationEssentials
import HTTPCaching
import ResponseStore

extension ContractRun {
  typealias Content = ContractContent

  // MARK: Writes

  func storeOne(_ operation: ContractOperation) {
    let (choice, parameter) = (operation.choice, operation.parameter)
    let byteCount =
      choice == 63 ? Content.largeByteCount : Content.bodyByteCounts[choice % Content.bodyByteCounts.count]
    var token: (token: RemovalToken, basis: Ledger.Basis)?
    switch parameter % 8 {
    case 0: if !tokens.isEmpty { token = tokens[(parameter / 8) % tokens.count] }
    case 1: token = readToken()
    default: break
    }
    note(
      "store version \(ledger.position + 1) of \(byteCount) bytes in slot \(operation.slot)"
        + (token == nil ? "" : ", with a token"))
    store(
      in: operation.slot, byteCount: byteCount, token: token, lifetime: parameter % 4 == 0 ? 1 : 1e6,
      padding: Content.paddingByteCounts[parameter % Content.paddingByteCounts.count],
      attachment: parameter % 16 == 3 ? [1, 2, 3] : nil)
  }

  func storeMany(_ operation: ContractOperation) {
    for offset in 0..<(32 + operation.parameter) {
      let slot = (operation.slot + offset) % Content.slotCount
      store(
        in: slot, byteCount: Content.bodyByteCounts[operation.choice % 4], token: nil, lifetime: 1e6, padding: 0,
        attachment: nil)
    }
    note("store up to version \(ledger.position) in \(32 + operation.parameter) slots from \(operation.slot) on")
  }

  private func store(
    in slot: Int, byteCount: Int, token: (token: RemovalToken, basis: Ledger.Basis)?, lifetime: Double, padding: Int,
    attachment: [UInt8]?
  ) {
    let now = isAlone ? clock.now : Ledger.date(ledger.position)
    let version = ledger.beginWrite(to: slot, by: process, at: now, basis: token?.basis ?? .call)
    let identity = Content.Identity(
      slot: slot, version: version, bodyNumber: version, byteCount: byteCount, paddingByteCount: padding)
    let isAccepted = store.store(
      CacheableResponse(
        status: 200, fields: Content.fields(identity), body: Content.body(identity),
        freshness: Content.freshness(at: now, lifetime: lifetime), vary: Content.vary(of: slot)),
      for: Content.key(of: slot), attachment: attachment, askedAt: token?.token)
    ledger.endWrite(version, to: slot, by: process, isAccepted: isAccepted)
    counts.writes += 1
  }

  func update(_ operation: ContractOperation) {
    guard !held.isEmpty else { return }
    let held = held[(operation.choice * 256 + operation.parameter) % held.count]
    let token = operation.parameter % 2 == 0 ? readToken() : nil
    var identity = held.identity
    identity.paddingByteCount = Content.paddingByteCounts[operation.choice % Content.paddingByteCounts.count]
    identity.revision = ledger.beginUpdate(
      of: identity.version, in: identity.slot, by: process, at: isAlone ? clock.now : nil,
      basis: token?.basis ?? held.basis)
    note(
      "update version \(identity.version) in slot \(identity.slot) to revision \(identity.revision)"
        + (token == nil ? "" : ", with a token"))
    let now = isAlone ? clock.now : Ledger.date(ledger.position)
    let isAccepted = store.update(
      held.response, fields: Content.fields(identity), freshness: Content.freshness(at: now, lifetime: 1e6),
      askedAt: token?.token)
    ledger.endUpdate(identity.revision, in: identity.slot, by: process, isAccepted: isAccepted)
    counts.writes += 1
  }

  // MARK: Removals

  func readToken() -> (token: RemovalToken, basis: Ledger.Basis) {
    let before = ledger.takePosition()
    let token = store.removalToken
    return (token, .token(after: before, before: ledger.takePosition()))
  }

  func takeToken() {
    note("take a removal token")
    tokens.append(readToken())
    if tokens.count > 4 { tokens.removeFirst() }
  }

  func remove(_ operation: ContractOperation) throws(Ledger.Violation) {
    let isSoft = operation.parameter % 3 == 0
    let slot = operation.slot
    let host = Content.host(of: slot)
    var after: Date?
    let scope: RemovalScope?
    let name: String
    let covers: (Int) -> Bool
    switch operation.choice % 16 {
    case 0:
      (scope, name, covers) = (.everything, "everything", { _ in true })
    case 1, 2:
      let now = isAlone ? clock.now : Ledger.date(ledger.position)
      let date = now - [0, 1e-6, 0.002, 0.02, 1, 100][operation.parameter % 6]
      after = date
      (scope, name, covers) = (.since(date), "since \(date.timeIntervalSinceReferenceDate)", { _ in true })
    case 3:
      (scope, name) = (.host(Content.hosts[host].uppercased()), "host \(host)")
      covers = { Content.host(of: $0) == host }
    case 4, 5:
      let prefix = Content.prefix(of: slot)
      (scope, name) = (.urlPrefix(Content.prefixURL(host: host, prefix: prefix)), "prefix \(prefix) of host \(host)")
      covers = { Content.host(of: $0) == host && Content.prefix(of: $0) == prefix }
    case 6, 7:
      let group = 1 + operation.parameter % (Content.groupCount - 1)
      scope = .group("g\(group)", ofOrigin: Content.prefixURL(host: host, prefix: 0))
      name = "group \(group) of host \(host)"
      covers = { Content.host(of: $0) == host && Content.group(of: $0) == group }
    case 8, 9:
      let tag = operation.parameter % Content.tagCount
      let isOfOrigin = operation.parameter % 2 == 0
      scope = .tag(
        "t\(tag)", in: Content.tagFieldNames, ofOrigin: isOfOrigin ? Content.prefixURL(host: host, prefix: 0) : nil)
      name = "tag \(tag)" + (isOfOrigin ? " of host \(host)" : "")
      covers = { (!isOfOrigin || Content.host(of: $0) == host) && Content.tag(of: $0) == tag }
    case 10..<12:
      (scope, name) = (.target(of: Content.url(of: slot)), "the URL of slot \(slot)")
      covers = { Content.hasSameURL($0, slot) }
    default:
      (scope, name) = (.key(Content.key(of: slot).bytes), "the key of slot \(slot)")
      covers = { Content.hasSameKey($0, slot) }
    }
    guard let scope else { fatalError("no scope of \(name)") }
    note("\(isSoft ? "softly purge" : "remove") \(name)")
    let purge = ledger.beginPurge(by: process, isSoft: isSoft, after: after, covers: covers)
    var tookEffect = false
    defer { ledger.end(purge, tookEffect: tookEffect) }
    repeat {
      if store.hasFailed { try replaceFailedStore() }
      if isSoft { store.softPurge(scope) } else { store.remove(scope) }
      tookEffect = !store.hasFailed
      // If another process has ended the generation, the next one may already have responses.
    } while !tookEffect && !ledger.isFaulty
  }

  // MARK: Lookups

  /// How a lookup reads.
  enum Reading: Int, CaseIterable {
    case copy, borrow, leavingBody
  }

  func lookUp(_ operation: ContractOperation) throws(Ledger.Violation) {
    let slot = operation.slot
    let reading = Reading.allCases[operation.choice % Reading.allCases.count]
    note("look slot \(slot) up (\(reading))")
    guard let found = try check(slot, reading), operation.parameter % 3 != 0, let response = found.response else {
      return
    }
    // A pending response has the removal token of its write, and one on disk that of the lookup.
    let stored = ledger.lowerBound(of: max(found.identity.version, found.identity.revision))
    let basis = Ledger.Basis.token(after: stored, before: ledger.takePosition())
    held.append(Held(response: response, identity: found.identity, basis: basis))
    if held.count > 24 { held.removeFirst() }
  }

  typealias Checked = (response: StoredResponse?, identity: Content.Identity)

  /// Looks a slot up, and compares the result with the ledger.
  ///
  /// If other processes are killed, a response may be missing for a moment, while the index is built again.
  @discardableResult
  func check(_ slot: Int, _ reading: Reading = .copy) throws(Ledger.Violation) -> Checked? {
    var patience = isAlone ? 0 : 1000
    while true {
      do throws(Ledger.Violation) {
        return try checkOnce(slot, reading)
      } catch {
        guard error.kind == .missing, patience > 0 else { throw error }
        patience -= 1
        Self.sleepBriefly()
      }
    }
  }

  private func checkOnce(_ slot: Int, _ reading: Reading) throws(Ledger.Violation) -> Checked? {
    let facts = ledger.facts(slot, by: process)
    let key = Content.key(of: slot)
    let vary = Content.vary(of: slot)
    var response: StoredResponse?
    var found: (identity: Content.Identity?, storedAt: Date, updatedAt: Date, freshness: FreshnessInfo)?
    switch reading {
    case .borrow:
      found = store.withResponse(key, where: { $0 == vary }) { borrowed in
        var body = Data()
        borrowed.forEachPiece { piece in piece.withUnsafeBytes { body.append(contentsOf: $0) } }
        let identity = Content.identity(
          of: borrowed.fields, status: borrowed.status, body: body, byteCount: borrowed.bodyByteCount, slot: slot)
        return (identity, borrowed.storedAt, borrowed.updatedAt, borrowed.freshness)
      }
    case .copy, .leavingBody:
      response = store.lookup(key, leavingBodiesBeyond: reading == .copy ? nil : 1000) { $0 == vary }
      if let response {
        let body = response.storedBody.map { $0.read(0..<$0.byteCount) } ?? response.body
        if body == nil, isAlone, !ledger.isFaulty { throw Ledger.Violation(.missing, "the body of slot \(slot)") }
        let identity = Content.identity(
          of: response.fields, status: response.status, body: body, byteCount: response.bodyByteCount, slot: slot)
        let isRight = response.key == key && response.vary == vary
        found = (isRight ? identity : nil, response.storedAt, response.updatedAt, response.freshness)
      }
    }
    counts.lookUp(isHit: found != nil)
    guard let found else {
      // Lookups miss until a failed store is opened again.
      if store.hasFailed { return nil }
      if let violation = ledger.violation(nil, after: facts) { throw violation }
      return nil
    }
    guard let identity = found.identity else { throw Ledger.Violation(.wrong, "slot \(slot)") }
    let isSoftPurged = found.freshness.flags.contains(.softPurged)
    if isSoftPurged, found.freshness.isFresh(at: found.freshness.responseTime) {
      throw Ledger.Violation(.fresh, "slot \(slot) is marked, and fresh")
    }
    let judged = Ledger.FoundResponse(
      version: identity.version, revision: identity.revision, storedAt: found.storedAt,
      updatedAt: found.updatedAt, isSoftPurged: isSoftPurged)
    if let violation = ledger.violation(judged, after: facts) { throw violation }
    return (response, identity)
  }
}
