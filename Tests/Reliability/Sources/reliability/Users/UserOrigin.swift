import Foundation
import LoopbackOrigin
import StoreContract
import Synchronization

/// Two origins that identify the user of each request, count the requests and check their credentials.
final class UserOrigin: Sendable {
  private struct State {
    var violations: [String] = []
  }

  private let state = Mutex(State())
  private let ledger: Ledger
  private let main: LoopbackOrigin
  private let other: LoopbackOrigin
  var port: Int { Int(main.port) }
  var otherPort: Int { Int(other.port) }

  init(_ ledger: Ledger) throws {
    self.ledger = ledger
    main = try LoopbackOrigin(recordsRequests: false) { _ in Reply(503) }
    other = try LoopbackOrigin(recordsRequests: false) { _ in Reply(503) }
    main.answer { [weak self] request in self?.reply(to: request, isOther: false) ?? Reply(503) }
    other.answer { [weak self] request in self?.reply(to: request, isOther: true) ?? Reply(503) }
  }

  func stop() {
    main.stop()
    other.stop()
  }

  var requestCount: Int { main.requestCount + other.requestCount }
  var violations: [String] { state.withLock { $0.violations } }

  /// The size of a large body in bytes, which exceeds the maximum of 64 MiB for a stored body.
  static let largeByteCount = 200_000_000
  private static let largeBody = Data(count: largeByteCount)

  /// The form of a large body.
  enum LargeForm: Int, CaseIterable, Sendable {
    /// `Content-Length` shows that the body is too large to store.
    case announced
    /// The body is collected up to the limit.
    case chunked
    /// The response has `no-store`.
    case noStore
  }

  // MARK: Identifying users

  private static func user(_ request: RecordedRequest) -> String {
    if let field = request["Authorization"] {
      let words = field.split(separator: " ", maxSplits: 1).map(String.init)
      guard words.count == 2 else { return "?" }
      guard words[0] == "Basic" else { return words[1] }
      let pair = Data(base64Encoded: words[1]).map { String(decoding: $0, as: UTF8.self) } ?? "?"
      return String(pair.prefix { $0 != ":" })
    }
    if let name = cookie("user", request) { return name }
    return request[User.partitionField] ?? User.anonymous.name
  }

  private static func cookie(_ name: String, _ request: RecordedRequest) -> String? {
    let pairs = request["Cookie"]?.split(separator: ";").map { $0.split(separator: "=", maxSplits: 1) } ?? []
    let pair = pairs.first { $0.count == 2 && $0[0].drop { $0 == " " } == name }
    return pair.map { String($0[1]) }
  }

  private func check(_ request: RecordedRequest, user: String, isOther: Bool) {
    let caller = request[User.callerField] ?? User.anonymous.name
    var text: String?
    if isOther, request["Authorization"] != nil { text = "Authorization was sent to another origin" }
    if user != caller, user != User.anonymous.name { text = "the credentials of another user were sent" }
    if let owner = Self.cookie("session", request), owner != caller { text = "the cookie of another user was sent" }
    guard let text else { return }
    state.withLock { $0.violations.append("\(text): \(request.target) by \(caller) as \(user)") }
  }

  // MARK: Replies

  private func reply(to request: RecordedRequest, isOther: Bool) -> Reply {
    let user = Self.user(request)
    check(request, user: user, isOther: isOther)
    // Pages of others, such as those who have no valid credentials, are in the slot of the anonymous user.
    let serial = Int(ledger.beginWrite(to: User.slot(of: user) ?? 0, by: 0, basis: .version))
    var random = SeededRandom(UInt64(serial))
    let words = request.path.split(separator: "/")
    let size = random.below(20) == 0 ? 300_000 : random.below(20_000)
    let page = UserPage(user: user, path: request.path, serial: serial, size: size)
    // For late redirects the number is in microseconds.
    let milliseconds = request.query.flatMap { Int($0) } ?? 0
    switch words.first {
    case "page", "landed":
      return Reply(200, Self.fields(request), body: page.body).after(milliseconds)
    case "challenge":
      guard request["Authorization"] != nil else {
        return Reply(401, [("WWW-Authenticate", "Basic realm=\"users\"")], body: page.body)
      }
      return Reply(200, Self.fields(request), body: page.body)
    case "redirect", "away":
      let port = words.first == "away" ? otherPort : port
      let target = "http://127.0.0.1:\(port)/landed/\(words.last ?? "")"
      return Reply(302, [("Location", target), ("Cache-Control", "max-age=60")], "")
    case "late":
      // The response ends with its connection, so that no bytes follow the head.
      let fields = [("Location", "/landed/\(words.last ?? "")")]
      return Reply(302, fields, "").untilClose().held(at: Reply.gate(microseconds: milliseconds), afterBodyBytes: 0)
    case "events":
      let type = ("Content-Type", "text/event-stream")
      let fields = [type, ("Cache-Control", serial % 2 == 0 ? "no-store" : "no-cache")]
      return Reply(200, fields, body: page.body).stalled(milliseconds).chunked()
    case "slow":
      return Reply(200, [("Cache-Control", "no-store")], body: page.body).stalled(milliseconds)
    case "cut":
      let reply = Reply(200, Self.fields(request), body: page.body).after(milliseconds)
      return request[User.callerField] == UserRounds.unluckyName ? reply.cut(.inBody(after: size / 2 + 1)) : reply
    case "cookie":
      let fields = [("Cache-Control", "max-age=60"), ("Set-Cookie", "session=\(request[User.callerField] ?? "?")")]
      return Reply(200, fields, body: page.body)
    case "large":
      let form = LargeForm(rawValue: milliseconds) ?? .announced
      let reply = Reply(
        200, [("Cache-Control", form == .noStore ? "no-store" : "max-age=60")], body: Self.largeBody)
      return form == .chunked ? reply.chunked(byteCount: 16 << 10) : reply
    default: return Reply(404)
    }
  }

  /// Returns fields that allow storing, with `Vary: Cookie`.
  private static func fields(_ request: RecordedRequest) -> [(String, String)] {
    [("Cache-Control", request.number % 2 == 0 ? "private, max-age=60" : "max-age=60"), ("Vary", "Cookie")]
  }
}

extension Reply {
  /// Delays the reply.
  fileprivate func after(_ milliseconds: Int) -> Reply {
    milliseconds == 0 ? self : held(at: Self.gate(milliseconds))
  }

  /// Delays the reply after the first byte of its body.
  fileprivate func stalled(_ milliseconds: Int) -> Reply {
    held(at: Self.gate(milliseconds), afterBodyBytes: 1)
  }

  private static func gate(_ milliseconds: Int) -> Gate { gate(microseconds: milliseconds * 1000) }

  fileprivate static func gate(microseconds: Int) -> Gate {
    let gate = Gate()
    DispatchQueue.global().asyncAfter(deadline: .now() + .microseconds(microseconds)) { gate.open() }
    return gate
  }
}
