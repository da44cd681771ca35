import Foundation
import StoreContract
import Synchronization

/// Counts the results of the callers of the series `users` and prints violations.
final class UserChecks: Sendable {
  enum Violation: String, CaseIterable, Sendable {
    case leak = "a response for another user"
    case different = "a different response than without the cache"
    case failed = "a request that succeeds without the cache failed"
    case waited = "a request took longer than without the cache"
  }

  private struct State {
    var asked = 0
    var timed = 0
    var counts: [Violation: Int] = [:]
    var pending: [Int: String] = [:]
    /// Wall-clock time and CPU time relative to the same request without the cache, by interface.
    var ratios: [String: [(time: Double, cpu: Double)]] = [:]
    var next = 0
  }

  private let ledger: Ledger
  private let state = Mutex(State())
  private let start = now()

  /// The number and share of requests that may be slow, because a machine under load delays some requests.
  private static let toleratedSlowCount = 2
  private static let toleratedSlowShare = 0.05

  init(_ ledger: Ledger) {
    self.ledger = ledger
  }

  func report(_ violation: Violation, _ text: String) {
    let count = state.withLock { state in
      state.counts[violation, default: 0] += 1
      return state.counts[violation, default: 0]
    }
    if count <= 5 { say("violation after \(String(format: "%.2f", now() - start)) s, \(violation.rawValue): \(text)") }
  }

  // MARK: Requests

  /// Records the begin of a request and returns its number for ``end(_:)``.
  func begin(_ text: String) -> Int {
    state.withLock { state in
      state.asked += 1
      state.next += 1
      state.pending[state.next] = text
      return state.next
    }
  }

  func end(_ number: Int) { state.withLock { $0.pending[number] = nil } }

  var pending: [String] { state.withLock { Array($0.pending.values) } }

  /// Checks that a response is a complete page for a path and belongs to the user.
  ///
  /// - Parameter alsoFor: Another user whose page is also correct.
  /// - Returns: False for a violation.
  @discardableResult
  func page(
    _ outcome: UserClients.Outcome, _ user: User, path: String, alsoFor other: String? = nil
  ) -> Bool {
    let text = "\(path) by \(user.name) (\(user.credentials)) over \(outcome.way.rawValue)"
    guard outcome.status == 200, let page = UserPage(body: outcome.body), page.path == path,
      outcome.url?.path == path
    else {
      report(
        .different,
        "\(text): status \(outcome.status), \(outcome.body.count) bytes, \(outcome.url?.path ?? "no URL"), "
          + "page of \(UserPage(body: outcome.body)?.path ?? "none")")
      return false
    }
    let facts = ledger.facts(User.slot(of: page.user) ?? 0, by: 0)
    if let violation = ledger.violation(Ledger.FoundResponse(version: UInt64(page.serial)), after: facts) {
      report(.different, "\(text): the page of \(page.user): \(violation)")
      return false
    }
    let name = user.credentials == .none ? User.anonymous.name : user.name
    guard page.user != name, page.user != other else { return true }
    // A page without a user leaks no data, but is not the requested response.
    report(page.user == User.anonymous.name ? .different : .leak, "\(text): the page of \(page.user)")
    return false
  }

  /// Compares the duration of a request with the duration without the cache.
  ///
  /// - Parameters:
  ///   - seconds: The duration; nil if the awaited event did not happen.
  ///   - plain: The duration of the same request without the cache, at the same time.
  ///   - delay: The delay of the origin; half of it is tolerated.
  func time(_ seconds: Double?, plain: Double?, delay: Double, _ text: @autoclosure () -> String) {
    guard let plain else { return }
    let limit = 2 * plain + delay / 2
    state.withLock { $0.timed += 1 }
    guard (seconds ?? .infinity) > limit else { return }
    let taken = seconds.map { String(format: "%.2f s", $0) } ?? "never"
    report(.waited, "\(text()): \(taken), without the cache \(String(format: "%.2f", plain)) s")
  }

  /// Records the wall-clock time and the CPU time of a request relative to the same request without the cache.
  func compare(_ time: Double, _ cpu: Double, with plainTime: Double, _ plainCPU: Double, _ way: String) {
    guard plainTime > 0, plainCPU > 0 else { return }
    state.withLock { state in
      state.timed += 1
      state.ratios[way, default: []].append((time / plainTime, cpu / plainCPU))
    }
  }

  // MARK: Results

  /// The medians of the relative times by interface; nil if there are none.
  var comparison: String? {
    let texts = state.withLock { state in
      state.ratios.sorted { $0.key < $1.key }.map { way, ratios in
        String(format: "\(way) %.2f× (CPU %.2f×)", Self.median(ratios.map(\.time)), Self.median(ratios.map(\.cpu)))
      }
    }
    return texts.isEmpty ? nil : "relative to a session without a cache: " + texts.joined(separator: ", ")
  }

  /// The numbers of requests, of timed requests and of violations of each kind.
  var numbers: [Int] {
    state.withLock { state in [state.asked, state.timed] + Violation.allCases.map { state.counts[$0] ?? 0 } }
  }

  private static func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

  var isGood: Bool {
    state.withLock { state in
      // Use the median, because other processes delay single requests. With few rounds it is not meaningful.
      let isLong = { (ratios: [(time: Double, cpu: Double)]) in
        ratios.count >= 8 && Self.median(ratios.map(\.time)) >= 2
      }
      guard !state.ratios.values.contains(where: isLong) else { return false }
      let slow = state.counts[.waited] ?? 0
      let isSlow = slow > Self.toleratedSlowCount && Double(slow) > Double(state.timed) * Self.toleratedSlowShare
      return !isSlow && state.counts.allSatisfy { $0.key == .waited || $0.value == 0 }
    }
  }
}
