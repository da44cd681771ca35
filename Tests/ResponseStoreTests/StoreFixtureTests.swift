import Foundation
import ResponseStore
import Testing

/// Expects an issue that a test or a trait after this one records. A test cannot expect that of its own ending.
private struct ExpectsIssue: SuiteTrait, TestTrait, TestScoping {
  let text: String
  var isRecursive: Bool { true }

  func provideScope(
    for test: Test, testCase: Test.Case?, performing function: @Sendable () async throws -> Void
  ) async throws {
    try await withKnownIssue {
      try await function()
    } matching: {
      String(describing: $0).contains(text)
    }
  }
}

private let violation = ExpectsIssue(text: "The counters say 7 entries")

@Suite("The end of tests of stores", violation, .endsFixtures)
struct StoreFixtureTests {
  @Test("A violated invariant is reported, although the test checks nothing")
  func violation() throws { try StoreFixture().store.miscountEntries() }
}

@Suite("The end of tests of stores that the suite's initializer opens", violation, .endsFixtures)
struct InitializedFixtureTests {
  init() throws { try StoreFixture().store.miscountEntries() }

  @Test("A violated invariant is reported, although the test does nothing")
  func violation() {}
}

@Suite("Fixtures of suites without a trait")
struct FixtureScopeTests {
  @Test("A fixture that nothing would check is reported")
  func missingTrait() throws {
    var fixture: StoreFixture?
    try withKnownIssue {
      fixture = try StoreFixture()
    } matching: {
      String(describing: $0).contains("lacks the trait .endsFixtures")
    }
    fixture?.close()
    fixture?.remove()
  }

  @Test("If the body of a scope throws, its fixtures end, the last one first")
  func error() async {
    var ended: [String] = []
    var directory = ""
    await #expect(throws: CancellationError.self) {
      try await FixtureScope.run {
        FixtureScope.atEnd { ended.append("first") }
        directory = try StoreFixture().directory
        FixtureScope.atEnd { ended.append("second") }
        throw CancellationError()
      }
    }
    #expect(ended == ["second", "first"])
    #expect(!directory.isEmpty && !FileManager.default.fileExists(atPath: directory))
  }
}
