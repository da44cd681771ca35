import Foundation
import FoundationNetworking
import Glibc
import StoreContract

/// The rounds of the series `users`, each with its own URL.
struct UserRounds: Sendable {
  typealias Way = UserClients.Way
  typealias Outcome = UserClients.Outcome

  let clients: UserClients
  let checks: UserChecks
  let port: Int
  /// The caller for whom the origin truncates its response.
  static let unluckyName = "unlucky"

  func run(_ round: UserScenario.Round, number: Int, _ random: inout SeededRandom) async {
    switch round {
    case .pages: await pages(number, &random)
    case .challenges: await challenges(number)
    case .redirects: await redirects(number, &random)
    case .lateRedirects: await lateRedirects(number, &random)
    case .streams: await random.below(2) == 0 ? streams(number) : slow(number, &random)
    case .timeouts: await timeouts(number, &random)
    case .cancels: await cancels(number, &random)
    case .cuts: await cuts(number, &random)
    case .cookies: await cookies(number)
    case .largeBodies: await largeBodies(number, &random)
    }
  }

  // MARK: One caller

  private struct Call: Sendable {
    var user: User
    var way: Way
    /// The time in milliseconds after which the caller cancels.
    var cancelsAfter: Double?
    var timeout: TimeInterval?
  }

  private func way(_ random: inout SeededRandom, cancels: Bool = false) -> Way {
    let ways = cancels ? Way.cancellable : Way.caching
    return ways[random.below(ways.count)]
  }

  private func ask(_ call: Call, _ target: String) async -> Outcome {
    var request = call.user.request(target, port: port)
    if let timeout = call.timeout { request.timeoutInterval = timeout }
    let finalRequest = request
    let number = checks.begin("\(target) by \(call.user.name) over \(call.way.rawValue)")
    defer { checks.end(number) }
    let task = Task { await clients.ask(finalRequest, by: call.way) }
    if let milliseconds = call.cancelsAfter {
      // Continue if the sleep is cancelled.
      try? await Task.sleep(for: .microseconds(Int(milliseconds * 1000)))
      task.cancel()
    }
    return await task.value
  }

  /// Sends the requests of all callers at the same time.
  private func ask(_ calls: [Call], _ target: String) async -> [(Call, Outcome)] {
    await withTaskGroup(of: (Int, Outcome).self) { group in
      for (index, call) in calls.enumerated() { group.addTask { (index, await ask(call, target)) } }
      var outcomes: [(Call, Outcome)] = []
      for await (index, outcome) in group { outcomes.append((calls[index], outcome)) }
      return outcomes
    }
  }

  /// Checks a request that must succeed.
  ///
  /// A failed request is repeated without the cache; it is a violation only if that succeeds.
  private func expectPage(
    _ outcome: Outcome, _ call: Call, _ target: String, path: String? = nil, alsoFor other: String? = nil
  ) async {
    let path = path ?? String(target.prefix { $0 != "?" })
    if call.cancelsAfter != nil, outcome.isCancelled { return }
    guard let error = outcome.error else {
      checks.page(outcome, call.user, path: path, alsoFor: other)
      return
    }
    let again = await clients.ask(call.user.request(target, port: port), by: .plain)
    guard again.error == nil else { return }
    checks.report(.failed, "\(target) by \(call.user.name) over \(outcome.way.rawValue): \(error)")
  }

  // MARK: Users

  private func pages(_ number: Int, _ random: inout SeededRandom) async {
    let target = "/page/\(number)?\(10 + random.below(30))"
    let calls = (User.known + [.anonymous]).shuffled(using: &random).map { user in
      Call(user: user, way: way(&random))
    }
    for (call, outcome) in await ask(calls, target) { await expectPage(outcome, call, target) }
    // Request the page again, when it may be stored.
    let again = Array(calls.shuffled(using: &random).prefix(5))
    for (call, outcome) in await ask(again, target) { await expectPage(outcome, call, target) }
  }

  private func challenges(_ number: Int) async {
    let target = "/challenge/\(number)"
    let (first, second) = (User.challenged[0], User.challenged[1])
    await challenge(first, target, byDataFrom: true)
    await withTaskGroup(of: Void.self) { group in
      // Do not use sessions without credentials: with and without a cache, their tasks never end after a 401.
      for way in [Way.data, .data, .dataFromPlain] {
        group.addTask {
          let outcome = await ask(Call(user: .anonymous, way: way), target)
          guard let page = UserPage(body: outcome.body) else {
            // Foundation may end a task whose challenge gets no response.
            return
          }
          if page.user != User.anonymous.name {
            checks.report(.leak, "\(target) without credentials over \(way.rawValue): the page of \(page.user)")
          }
        }
      }
      for user in [first, second] {
        for byDataFrom in [true, false] {
          group.addTask { await challenge(user, target, byDataFrom: byDataFrom) }
        }
      }
    }
  }

  /// Sends a request with a session whose delegate has credentials; a caching session may return the 401 to its caller.
  private func challenge(_ user: User, _ target: String, byDataFrom: Bool) async {
    let number = checks.begin("\(target) as \(user.name)")
    let outcome = await clients.ask(user.request(target, port: port), as: user, byDataFrom: byDataFrom)
    checks.end(number)
    if !byDataFrom, outcome.status == 401 || outcome.error != nil { return }
    await expectPage(outcome, Call(user: user, way: outcome.way), target)
  }

  private func cookies(_ number: Int) async {
    for index in 0..<3 {
      let user = User(name: "user\(index)", credentials: .none)
      let target = "/cookie/\(number)-\(index)"
      let pending = checks.begin(target)
      let outcome = await clients.askShared(user.request(target, port: port))
      checks.end(pending)
      await expectPage(outcome, Call(user: user, way: .data), target)
    }
  }

  // MARK: Cancellation, timeouts, redirects

  private func redirects(_ number: Int, _ random: inout SeededRandom) async {
    let target = random.below(2) == 0 ? "/redirect/\(number)" : "/away/\(number)"
    let calls = (0..<5).map { _ in
      let cancels = random.below(3) > 0
      return Call(
        user: User.known[random.below(5)], way: way(&random, cancels: cancels),
        cancelsAfter: cancels ? Double(random.below(100)) / 10 : nil)
    }
    for (call, outcome) in await ask(calls, target) {
      // Credentials may be sent to the same origin, but need not be.
      await expectPage(outcome, call, target, path: "/landed/\(number)", alsoFor: User.anonymous.name)
    }
  }

  /// Checks that every request ends; a response and a timeout are both correct.
  private func lateRedirects(_ number: Int, _ random: inout SeededRandom) async {
    let targets = (0..<40).map { index in
      (way: way(&random), target: "/late/\(number)-\(index)?\(998_500 + random.below(4_000))")
    }
    await withTaskGroup(of: Void.self) { group in
      for (way, target) in targets {
        group.addTask {
          let call = Call(user: .anonymous, way: way, timeout: 1)
          let outcome = await ask(call, target)
          if outcome.isTimedOut { return }
          let path = "/landed/" + target.dropFirst("/late/".count).prefix { $0 != "?" }
          await expectPage(outcome, call, target, path: path)
        }
      }
    }
  }

  private func cancels(_ number: Int, _ random: inout SeededRandom) async {
    let target = "/page/\(number)?80"
    let calls = (0..<5).map { _ in
      let cancels = random.below(2) == 0
      return Call(
        user: .anonymous, way: way(&random, cancels: cancels), cancelsAfter: cancels ? Double(random.below(130)) : nil)
    }
    for (call, outcome) in await ask(calls, target) { await expectPage(outcome, call, target) }
  }

  private func cuts(_ number: Int, _ random: inout SeededRandom) async {
    let target = "/cut/\(number)?30"
    let unlucky = User(name: Self.unluckyName, credentials: .none)
    let calls = [unlucky, .anonymous, .anonymous, .anonymous].shuffled(using: &random).map { user in
      Call(user: user, way: way(&random))
    }
    for (call, outcome) in await ask(calls, target) {
      // The unlucky caller may share a complete response. A truncated response is a violation.
      if call.user == unlucky, outcome.error != nil { continue }
      // A caller with bytes of the unlucky caller's response cannot go on with another one: it has no entity tag.
      if call.way == .delegate, outcome.isCut { continue }
      await expectPage(outcome, call, target)
    }
  }

  private func timeouts(_ number: Int, _ random: inout SeededRandom) async {
    let target = "/page/\(number)?3000"
    var calls = [Call(user: .anonymous, way: .plain, timeout: 1)]
    for way in Way.caching.shuffled(using: &random).prefix(3) {
      calls.append(Call(user: .anonymous, way: way, timeout: 1))
    }
    calls.append(Call(user: .anonymous, way: way(&random)))
    let outcomes = await ask(calls, target)
    guard let plain = outcomes.first(where: { $0.0.way == .plain && $0.0.timeout != nil })?.1, plain.isTimedOut else {
      return
    }
    for (call, outcome) in outcomes where call.way != .plain {
      guard call.timeout != nil else {
        await expectPage(outcome, call, target)
        continue
      }
      let text = "\(target) with a timeoutInterval of 1 s over \(call.way.rawValue)"
      checks.time(outcome.total, plain: plain.total, delay: 0.8, text)
      if !outcome.isTimedOut {
        checks.report(.different, "\(text): no timeout after \(String(format: "%.2f", outcome.total)) s")
      }
    }
  }

  // MARK: Responses that cannot be shared

  private func streams(_ number: Int) async {
    let target = "/events/\(number)?1500"
    let calls = [Way.plain, .delegate, .delegate, .delegate].map { Call(user: .anonymous, way: $0) }
    let outcomes = await ask(calls, target)
    guard let plain = outcomes.first(where: { $0.0.way == .plain })?.1, plain.error == nil else { return }
    for (call, outcome) in outcomes where call.way != .plain {
      await expectPage(outcome, call, target)
      checks.time(outcome.firstByte, plain: plain.firstByte, delay: 1.5, "the first byte of \(target)")
    }
  }

  private func slow(_ number: Int, _ random: inout SeededRandom) async {
    let target = "/slow/\(number)?1500"
    var calls = [Call(user: .anonymous, way: .plain)]
    for _ in 0..<3 { calls.append(Call(user: .anonymous, way: way(&random))) }
    let outcomes = await ask(calls, target)
    guard let plain = outcomes.first(where: { $0.0.way == .plain })?.1, plain.error == nil else { return }
    for (call, outcome) in outcomes where call.way != .plain {
      await expectPage(outcome, call, target)
      // Compare the times without the origin's delay, which must not be doubled.
      checks.time(
        outcome.total - 1.5, plain: max(0, plain.total - 1.5), delay: 1.5, "\(target) over \(call.way.rawValue)")
    }
  }

  // MARK: Large bodies

  /// Loads a large body over each interface in random order; one at a time, so that they do not share the processors.
  private func largeBodies(_ number: Int, _ random: inout SeededRandom) async {
    let form = UserOrigin.LargeForm.allCases[random.below(UserOrigin.LargeForm.allCases.count)]
    let target = "/large/\(number)?\(form.rawValue)"
    var loads: [(outcome: Outcome, cpu: Double)] = []
    for way in ([.plain] + Way.caching).shuffled(using: &random) {
      // Open a connection first, so that its time is not measured.
      _ = await ask(Call(user: .anonymous, way: way), "/page/\(number)-\(way)")
      let before = processorTime()
      let outcome = await ask(Call(user: .anonymous, way: way), target)
      loads.append((outcome, processorTime() - before))
    }
    guard let plain = loads.first(where: { $0.outcome.way == .plain }), plain.outcome.error == nil else { return }
    for (outcome, cpu) in loads where outcome.way != .plain {
      let text = "\(target) over \(outcome.way.rawValue)"
      if let error = outcome.error {
        checks.report(.failed, "\(text): \(error)")
      } else if outcome.status != 200 || outcome.body.count != UserOrigin.largeByteCount {
        checks.report(.different, "\(text): \(outcome.body.count) bytes")
      }
      checks.compare(outcome.total, cpu, with: plain.outcome.total, plain.cpu, outcome.way.rawValue)
    }
  }

  /// Returns the CPU time of this process in seconds.
  private func processorTime() -> Double {
    var time = timespec()
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time)
    return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
  }
}
