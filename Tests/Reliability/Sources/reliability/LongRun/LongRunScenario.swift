/// A mixed load of the series `longrun`, which runs operations of the given kinds in random order.
struct LongRunScenario: Sendable {
  /// One operation. Half of those that send a request are cancelled at a random time.
  enum Operation: String, CaseIterable, Sendable {
    // Without Foundation's sessions.
    /// A response that is stored.
    case hit
    /// A new URL of one of the hosts.
    case miss
    /// A response that the origin delays, so that it is cancelled in each of its states.
    case delayed
    /// A stale response, which the origin validates.
    case validation
    /// A response that must not be stored.
    case unstorable
    /// A stream that is read to its end, or abandoned after its first chunk.
    case stream
    case purge
    /// A cache that is opened, used and closed.
    case shortCache

    // Tasks of Foundation's sessions. They have a cache, except in the scenario for comparison.
    /// A task of a session that is used all the time.
    case task
    /// A session with one task.
    case shortSession
    /// A request over the configuration of a session that is used all the time.
    case dataFrom
  }

  var name: String
  var operations: [Operation]
  /// Whether the sessions have a cache.
  var caches = true

  private static func mix(_ shares: [(Operation, Int)]) -> [Operation] {
    shares.flatMap { Array(repeating: $0.0, count: $0.1) }
  }

  private static let withoutSessions = mix([
    (.hit, 40), (.miss, 30), (.delayed, 10), (.validation, 10), (.unstorable, 5), (.stream, 3), (.purge, 1),
    (.shortCache, 1),
  ])
  private static let withSessions = mix([(.task, 80), (.shortSession, 20)])

  static let all: [LongRunScenario] = [
    LongRunScenario(name: "data", operations: withoutSessions),
    LongRunScenario(name: "sessions", operations: withSessions + mix([(.dataFrom, 20)])),
    // What Foundation itself keeps of the same tasks.
    LongRunScenario(name: "sessions without a cache", operations: withSessions, caches: false),
  ]
}
