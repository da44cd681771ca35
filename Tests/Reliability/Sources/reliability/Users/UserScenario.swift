/// The parameters of a scenario of the series `users`, which runs rounds of the given kinds in random order.
struct UserScenario: Sendable {
  /// The kind of a round, in which several callers request a new URL at the same time.
  enum Round: String, CaseIterable, Sendable {
    /// Users with credentials of every kind, and without credentials.
    case pages
    /// Sessions whose delegates respond to a 401, and users without credentials.
    case challenges
    /// A redirect to the same or another origin; callers cancel while it arrives.
    case redirects
    /// A redirect that ends when its callers' time limit passes.
    case lateRedirects
    /// Event streams and slow responses, which cannot be shared.
    case streams
    /// A response that is slower than the time limit of some callers.
    case timeouts
    /// Callers that cancel while others wait for the same fetch.
    case cancels
    /// A response that the origin truncates for one caller.
    case cuts
    /// A cookie that the origin sets for each user of a shared cache.
    case cookies
    /// Bodies that are too large to store, one caller at a time, whose times are compared with those without the cache.
    case largeBodies
  }

  var name: String
  var rounds: [Round]
  /// The number of concurrent rounds.
  var width = 3

  static let all: [UserScenario] = [
    UserScenario(name: "pages", rounds: [.pages]),
    UserScenario(name: "challenges", rounds: [.challenges]),
    UserScenario(name: "redirects", rounds: [.redirects], width: 6),
    UserScenario(name: "late redirects", rounds: [.lateRedirects], width: 8),
    UserScenario(name: "streams", rounds: [.streams]),
    UserScenario(name: "timeouts", rounds: [.timeouts]),
    UserScenario(name: "large bodies", rounds: [.largeBodies], width: 1),
    UserScenario(name: "together", rounds: Round.allCases.filter { $0 != .largeBodies }, width: 4),
  ]
}
