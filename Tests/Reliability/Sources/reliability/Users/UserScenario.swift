/// The shape of one scenario of the series `users`: the kinds of rounds that it makes, in random order.
struct UserScenario: Sendable {
  /// What happens in a round: several callers ask for the same URL at the same time, which no round before has asked
  /// for.
  enum Round: String, CaseIterable, Sendable {
    /// Users with credentials of every kind, and without.
    case pages
    /// Sessions whose delegates answer a 401, and users without credentials.
    case challenges
    /// A redirect to this or to another origin; callers cancel and time out while it arrives.
    case redirects
    /// A redirect that ends at the moment when its callers' time limit passes.
    case lateRedirects
    /// Event streams, and slow responses that cannot be shared.
    case streams
    /// The origin is slower than some callers wait.
    case timeouts
    /// Callers cancel while others wait for the same fetch.
    case cancels
    /// The origin cuts the response to one caller.
    case cuts
    /// The origin sets a cookie for each user of a shared cache.
    case cookies
    /// Bodies too large to be stored, one caller at a time, whose times are compared with those without the cache.
    case largeBodies
  }

  var name: String
  var rounds: [Round]
  /// Rounds under way at the same time.
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
