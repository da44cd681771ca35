import Foundation
import Synchronization

/// Counts what callers of the series `users` saw, and prints violations.
final class UserChecks: Sendable {
  enum Violation: String, CaseIterable, Sendable {
    case leak = "a response for another user"
    case different = "another response than without the cache"
    case failed = "a request failed that succeeds without the cache"
    case waited = "a request took longer than without the cache"
  }

  private struct State {
    var asked = 0
    var timed = 0
    var counts: [Violation: Int] = [:]
    var pending: [Int: String] = [:]
    /// Time and processor time relative to the same request without the cache, by the way in.
    var ratios: [String: [(time: Double, cpu: Double)]] = [:]
    var next = 0
  }

  private let state = Mutex(State())
  private let start = now()

  /// How many requests may be slow: a machine under load delays one now and then.
  private static let toleratedSlowCount = 2
  private static let toleratedSlowShare = 0.05

  func report(_ violation: Violation, _ text: String) {
    let count = state.withLock { state in
      state.counts[violation, default: 0] += 1
      return state.counts[violation, default: 0]
    }
    if count <= 5 { say("violation after \(String(format: "%.2f", now() - start)) s, \(violation.rawValue): \(text)") }
  }

  // MARK: Requests

  /// Notes a request that begins; the number ends it.
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

  /// Checks that a response is a complete page for a path, and the user's own.
  ///
  /// - Parameter alsoFor: Another user whose page is no less right.
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
    let name = user.credentials == .none ? User.nobody.name : user.name
    guard page.user != name, page.user != other else { return true }
    // What is for nobody in particular harms nobody, but is not what the user asked for.
    report(page.user == User.nobody.name ? .different : .leak, "\(text): the page of \(page.user)")
    return false
  }

  /// Compares a time with that of the same request without the cache.
  ///
  /// - Parameters:
  ///   - seconds: The time; nil if what was waited for never came.
  ///   - plain: The time without the cache, at the same moment.
  ///   - delay: The origin's own delay; half of it is tolerated.
  func time(_ seconds: Double?, plain: Double?, delay: Double, _ text: @autoclosure () -> String) {
    guard let plain else { return }
    let limit = 2 * plain + delay / 2
    state.withLock { $0.timed += 1 }
    guard (seconds ?? .infinity) > limit else { return }
    let taken = seconds.map { String(format: "%.2f s", $0) } ?? "for ever"
    report(.waited, "\(text()): \(taken), without the cache \(String(format: "%.2f", plain)) s")
  }

  /// Notes the time and the processor time of a request, and those of the same request without the cache.
  func compare(_ time: Double, _ cpu: Double, with plainTime: Double, _ plainCPU: Double, _ way: String) {
    guard plainTime > 0, plainCPU > 0 else { return }
    state.withLock { state in
      state.timed += 1
      state.ratios[way, default: []].append((time / plainTime, cpu / plainCPU))
    }
  }

  // MARK: The outcome

  /// The medians of what was compared, for each way in; nil if nothing was.
  var comparison: String? {
    let texts = state.withLock { state in
      state.ratios.sorted { $0.key < $1.key }.map { way, ratios in
        String(format: "\(way) %.2f× (CPU %.2f×)", Self.median(ratios.map(\.time)), Self.median(ratios.map(\.cpu)))
      }
    }
    return texts.isEmpty ? nil : "relative to a plain session: " + texts.joined(separator: ", ")
  }

  /// Asked, timed, and each kind of violation.
  var numbers: [Int] {
    state.withLock { state in [state.asked, state.timed] + Violation.allCases.map { state.counts[$0] ?? 0 } }
  }

  private static func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

  var isGood: Bool {
    state.withLock { state in
      // The median, since other processes delay single requests; of a few rounds, as the short form has, it says nothing.
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
