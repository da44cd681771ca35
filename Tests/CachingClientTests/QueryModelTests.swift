import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Random requests, unsafe requests and purges, compared with a plain model of the rules for queries (RFC 10008) and
/// for equivalent URLs (No-Vary-Search).
@Suite("Model of queries and equivalent URLs", .timeLimit(.minutes(1)))
struct QueryModelTests {
  /// A request as the model compares it.
  struct Question: Hashable {
    var method = "GET"
    var path: String
    var query: String?
    var partition: String
    /// The content of a query as the origin reads it, and its type; empty for a GET.
    var content = ""
    var type = ""

    var url: String { "http://example.com" + path + (query.map { "?" + $0 } ?? "") }
    var isGET: Bool { method == "GET" }
  }

  /// A response that the origin has sent.
  struct Sent {
    var question: Question
    /// The name of the variation; nil without No-Vary-Search.
    var variation: String?
    var body: String
    /// Whether no purge, unsafe request or newer response has ended it.
    var isValid = true
    /// Whether the cache can find it. It need not find one of an earlier variation of the path.
    var isFindable = true
  }

  /// All responses, in the order of their arrival.
  struct Model {
    var sent: [Sent] = []

    /// The variations, each with a plain comparison: what is left of a query that has few forms.
    static let variations: [String: @Sendable ([String]) -> [String]] = [
      "key-order": sortedByName,
      #"params=("u")"#: { $0.filter { !$0.hasPrefix("u=") } },
      #"params=("u" "v"), key-order"#: { sortedByName($0.filter { !$0.hasPrefix("u=") && !$0.hasPrefix("v=") }) },
      #"except=("a")"#: { $0.filter { $0.hasPrefix("a=") } },
      "params": { _ in [] },
    ]

    /// Sorts parameters, all of whose names have one letter. Those of one name keep their order.
    private static let sortedByName: @Sendable ([String]) -> [String] = { parameters in
      ["a", "b", "u", "v"].flatMap { name in parameters.filter { $0.hasPrefix(name) } }
    }

    static func matches(_ question: Question, _ response: Sent) -> Bool {
      if question == response.question { return true }
      guard question.isGET, response.question.isGET, question.path == response.question.path,
        question.partition == response.question.partition, let rest = response.variation.flatMap({ variations[$0] })
      else { return false }
      func parameters(_ query: String?) -> [String] { (query ?? "").split(separator: "&").map(String.init) }
      return rest(parameters(question.query)) == rest(parameters(response.question.query))
    }

    /// The responses that may answer a request: none is older than the last one for the very same request.
    func permitted(_ question: Question) -> [Sent] {
      let own = sent.lastIndex { $0.question == question } ?? sent.startIndex
      return sent[own...].filter { $0.isValid && Self.matches(question, $0) }
    }

    /// Records a response from the origin.
    mutating func add(_ response: Sent) {
      for index in sent.indices where sent[index].isValid {
        let old = sent[index]
        let isOfPath =
          old.question.path == response.question.path && old.question.partition == response.question.partition
          && old.question.isGET && response.question.isGET
        if response.variation != nil, old.variation != nil, isOfPath, old.variation != response.variation {
          sent[index].isFindable = false
        }
        // A newer response for an equivalent URL replaces it, or ends what it was equivalent to.
        if Self.matches(response.question, old) { sent[index].isFindable = false }
      }
      sent.append(response)
    }

    /// Ends the responses that a change of a URL concerns: its own, its queries, and the equivalents of its path.
    mutating func end(
      partition: String?, ofPath isPath: (String) -> Bool, _ isURL: (Question) -> Bool
    ) {
      for index in sent.indices {
        let question = sent[index].question
        guard partition == nil || question.partition == partition else { continue }
        if isURL(question) || question.isGET && sent[index].variation != nil && isPath(question.path) {
          sent[index].isValid = false
        }
      }
    }
  }

  /// A content, and what the origin reads in it.
  private static let contents: [(text: String, type: String, meaning: String)] = [
    ("", "application/sql", ""), ("select 1", "application/sql", "select 1"),
    ("select 2", "application/sql", "select 2"), ("select 1", "text/plain", "select 1"),
    ("select 1", "Application/SQL", "select 1"),
    (#"{"a":1,"b":2}"#, "application/json", "ab"), (#" {"b":2, "a":1} "#, "application/json", "ab"),
    (#"{"a":1,"b":3}"#, "application/json", "ab3"), (#"{"a":1,"b":2}"#, "text/plain", #"{"a":1,"b":2}"#),
    (#" {"b":2, "a":1} "#, "text/plain", #" {"b":2, "a":1} "#),
  ]

  private static let parameters = ["a=1", "a=2", "b=1", "u=1", "u=2", "v=1"]

  private static func question(_ random: inout SeededGenerator) -> (Question, CachingClientRequest) {
    var question = Question(
      path: ["/p", "/q", "/p/q"].randomElement(using: &random) ?? "/p",
      partition: ["", "", "tenant"].randomElement(using: &random) ?? "")
    let parts = (0..<Int.random(in: 0...3, using: &random)).map { _ in parameters.randomElement(using: &random) ?? "" }
    if !parts.isEmpty { question.query = parts.joined(separator: "&") }
    guard Int.random(in: 0..<3, using: &random) == 0 else {
      return (question, get(question.url, partition: question.partition))
    }
    let content = contents.randomElement(using: &random) ?? contents[0]
    question.method = Bool.random(using: &random) ? "QUERY" : "POST"
    (question.content, question.type) = (content.meaning, content.type.lowercased())
    var request = get(
      question.url, ["Content-Type": content.type], method: question.method, partition: question.partition,
      overrides: RequestOverrides(treatsAsQuery: true, queryNormalForm: .json))
    request.body = .bytes(Data(content.text.utf8))
    return (question, request)
  }

  /// Rows 115 to 119, 121 and 130.
  @Test(
    "No request gets another request's response, or one that was ended, and nothing is fetched twice",
    arguments: UInt64(1)...6)
  func model(seed: UInt64) async throws {
    let clock = ManualClock()
    // With and without a memory tier.
    try await withDiskCache(memoryCapacity: seed % 2 == 0 ? 1 << 20 : 0, clock: clock, "seed \(seed)") { cache in
      let client = CachingClient(cache)
      var random = SeededGenerator(seed: seed)
      var model = Model()
      let variation = Mutex<String?>(nil)
      let transport = ScriptedTransport { request, number in
        var fields = HeaderFields([("Date", clock.field), ("Cache-Control", "max-age=100000")])
        if let value = variation.withLock({ $0 }) { fields.append(name: "No-Vary-Search", value: value) }
        return IncomingResponse(
          head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data("\(number)".utf8)))
      }
      var hitCount = 0
      for step in 0..<400 {
        clock.advance(by: 1)
        variation.withLock { value in
          let isUsual = Int.random(in: 0..<4, using: &random) > 0
          value =
            isUsual ? #"params=("u" "v"), key-order"# : Model.variations.keys.sorted().randomElement(using: &random)
          if Int.random(in: 0..<5, using: &random) == 0 { value = nil }
        }
        var (question, request) = Self.question(&random)
        switch Int.random(in: 0..<20, using: &random) {
        case 0:
          let method = ["PUT", "DELETE", "POST"].randomElement(using: &random) ?? "PUT"
          request = get(question.url, method: method, partition: question.partition)
          _ = try await client.respond(to: request, over: transport).text()
          model.end(partition: question.partition, ofPath: { $0 == question.path }) { $0.url == question.url }
        case 1:
          try Self.purge(question, &random, in: cache, &model)
        case let choice:
          if choice == 2 { request.policy = .reloadIgnoringLocalCacheData }
          let permitted = model.permitted(question)
          let before = transport.count
          let body = try await client.respond(to: request, over: transport).text()
          let label = "seed \(seed), step \(step): \(question) got \(body)"
          if transport.count > before {
            let isFindable = permitted.contains { $0.isFindable }
            #expect(request.policy != .useProtocolCachePolicy || !isFindable, "\(label) from the origin")
            let sent = question.isGET ? variation.withLock { $0 } : nil
            model.add(Sent(question: question, variation: sent, body: body))
          } else {
            #expect(request.policy == .useProtocolCachePolicy, "\(label)")
            #expect(permitted.contains { $0.body == body }, "\(label); permitted: \(permitted.map(\.body))")
            hitCount += 1
          }
        }
      }
      #expect(hitCount > 50, "seed \(seed)")
    }
  }

  /// Purges a URL, a prefix of URLs or everything.
  private static func purge(
    _ question: Question, _ random: inout SeededGenerator, in cache: ResponseCache, _ model: inout Model
  ) throws {
    let url = try #require(URL(string: question.url))
    switch Int.random(in: 0..<8, using: &random) {
    case 0:
      cache.remove(Removal(.everything))
      model.end(partition: nil, ofPath: { _ in true }) { _ in true }
    case 1...3:
      cache.remove(Removal(try #require(.urlPrefix(url))))
      let isPath = { (path: String) in question.query == nil ? path.hasPrefix(question.path) : path == question.path }
      model.end(partition: nil, ofPath: isPath) { $0.url.hasPrefix(question.url) }
    default:
      cache.remove(Removal(try #require(.target(of: url))))
      model.end(partition: nil, ofPath: { $0 == question.path }) { $0.url == question.url }
    }
  }
}
