import CacheModel
import FoundationEssentials
import HTTPCaching
import ResponseStore
import StoreContract

/// A body that a worker stores in pieces, as one that arrives from an origin.
struct ArrivingBody {
  let key: Int
  private let content: Content
  private let ledger: Ledger
  private let body: IncomingBody
  /// The position at which it began. Its bytes follow from it.
  private let number: UInt64
  private let token: RemovalToken
  private let basis: Ledger.Basis
  private var rest: Data

  init(_ key: Int, of content: Content, in store: ResponseStore, _ ledger: Ledger) {
    (self.key, self.content, self.ledger) = (key, content, ledger)
    let before = ledger.takePosition()
    token = store.removalToken
    number = ledger.takePosition()
    basis = .token(after: before, before: number)
    body = store.makeIncomingBody()
    rest = content.arrivingBody(key, number: number)
  }

  var isSent: Bool { rest.isEmpty }
  /// Whether some of it is on disk.
  var isOnDisk: Bool { body.readableByteCount > 0 }

  /// Appends bytes; returns whether the store accepts them.
  mutating func append(_ byteCount: Int) -> Bool {
    let piece = Data(rest.prefix(byteCount))
    rest = Data(rest.dropFirst(byteCount))
    return body.write([piece]) && (!isSent || body.complete())
  }

  /// Stores the response with the body, of which all was sent.
  func store(by process: Int = 0) {
    let version = ledger.beginWrite(to: key, by: process, basis: basis)
    let head = CacheableResponse(
      status: 200, fields: content.fields(key, version: version, update: 0, bodyNumber: number), body: Data(),
      freshness: Content.freshness(at: Ledger.date(version)), vary: VaryKey(fields: []))
    let outcome = body.store(head, for: content.requestKey(key), attachment: nil, askedAt: token, by: nil)
    ledger.endWrite(version, to: key, by: process, isAccepted: outcome == .stored)
  }
}
