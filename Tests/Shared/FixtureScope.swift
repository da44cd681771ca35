import Synchronization
import Testing

/// Where fixtures register at their creation, so that no test has to end them.
///
/// A suite whose tests create fixtures has the trait ``EndsFixtures``. A function that calls a test's closure with a
/// fixture runs it in ``run(_:)``.
final class FixtureScope: Sendable {
  /// Sendable, because the ending runs after the test, and not while the test uses the fixture.
  private struct Ending: @unchecked Sendable {
    let run: () async -> Void
  }

  @TaskLocal private static var current: FixtureScope?
  private let endings = Mutex<[Ending]>([])

  /// Runs `ending` at the end of the test, before the endings that were registered earlier.
  static func atEnd(sourceLocation: SourceLocation = #_sourceLocation, _ ending: @escaping () async -> Void) {
    guard let current else {
      Issue.record(
        "A fixture is never checked or removed, because the suite lacks the trait .endsFixtures",
        sourceLocation: sourceLocation)
      return
    }
    let ending = Ending(run: ending)
    current.endings.withLock { $0.append(ending) }
  }

  /// Runs `body`, and then the endings of the fixtures that it has created, also if it throws.
  static func run(isolation: isolated (any Actor)? = #isolation, _ body: () async throws -> Void) async throws {
    let scope = FixtureScope()
    let result: Result<Void, any Error>
    do {
      result = .success(try await $current.withValue(scope) { try await body() })
    } catch {
      result = .failure(error)
    }
    while let ending = scope.endings.withLock({ $0.popLast() }) { await ending.run() }
    try result.get()
  }
}

/// Ends the fixtures that a test has created, also in the initializer of its suite.
struct EndsFixtures: SuiteTrait, TestTrait, TestScoping {
  var isRecursive: Bool { true }

  func provideScope(
    for test: Test, testCase: Test.Case?, performing function: @Sendable () async throws -> Void
  ) async throws {
    try await FixtureScope.run(function)
  }
}

extension SuiteTrait where Self == EndsFixtures {
  static var endsFixtures: Self { Self() }
}
