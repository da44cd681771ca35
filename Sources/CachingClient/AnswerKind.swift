import FoundationEssentials
import HTTPCaching

/// What an answer from a stored response consists of.
@usableFromInline
enum AnswerKind: Sendable {
  case whole
  case notModified
  case part(ByteRange)
  case unsatisfiableRange(completeLength: Int)

  /// The fields of the answer.
  func fields(of stored: some StoredResponseView, age: Int) -> HTTPFields {
    switch self {
    case .whole: Reuse.answerFields(for: stored, age: age)
    case .part(let range): PartialContent.head(for: stored, range: range, age: age).fields
    case .unsatisfiableRange(let length): PartialContent.unsatisfiableHead(completeLength: length).fields
    case .notModified: Reuse.notModifiedHead(for: stored, age: age).fields
    }
  }
}

/// An answer from a stored response before it has fields: these may be built at once or when someone asks.
struct AnswerShape {
  let kind: AnswerKind
  let status: Int
  let body: ResponseBody
  let age: Int
  let rule: Rule

  /// What a decision makes of a stored response; `nil` if the origin must be asked.
  init?(
    _ decision: ReuseDecision, of stored: some StoredResponseView, for request: ClientRequest,
    body storedBody: () -> Data
  ) {
    func wholeBody() -> ResponseBody {
      request.head.method == "HEAD" ? .empty : ResponseBody(storedBody())
    }
    switch decision {
    case .serve(let age, let rule), .serveStale(let age, _, let rule):
      self.init(kind: .whole, status: stored.status, body: wholeBody(), age: age, rule: rule)
    case .notModified(let age, _, let rule):
      self.init(kind: .notModified, status: 304, body: .empty, age: age, rule: rule)
    case .unsatisfiableRange(let length, let age, let rule):
      self.init(kind: .unsatisfiableRange(completeLength: length), status: 416, body: .empty, age: age, rule: rule)
    case .partial(let range, let age, _, let rule):
      // A transport may have undone the content coding of what is stored, and then its bytes are not those a range counts.
      // Ranges are optional for whoever answers (RFC 9110 section 14.2): such a request gets the whole response.
      guard !stored.fields.contains("Content-Encoding") else {
        guard !stored.facts.flags.contains(.incomplete) else { return nil }
        self.init(kind: .whole, status: stored.status, body: wholeBody(), age: age, rule: rule)
        return
      }
      let all = storedBody()
      guard let positions = PartialContent.bodyRange(of: range, in: stored), positions.upperBound <= all.count else {
        return nil
      }
      let part = all[(all.startIndex + positions.lowerBound)..<(all.startIndex + positions.upperBound)]
      self.init(kind: .part(range), status: 206, body: ResponseBody(part), age: age, rule: rule)
    case .gatewayTimeout, .revalidate, .complete, .fetch: return nil
    }
  }

  private init(kind: AnswerKind, status: Int, body: ResponseBody, age: Int, rule: Rule) {
    self.kind = kind
    self.status = status
    self.body = body
    self.age = age
    self.rule = rule
  }
}
