import Foundation
import StoreContract
import Testing

/// The series `contract` of `Scripts/reliability` runs the same for as long as one likes.
///
/// Each test has a process of its own, because it replaces functions of the C library, or forks.
@Suite("Contract of the store")
struct ContractTests {
  enum Kind: CaseIterable, Codable, Sendable {
    case roomy, evicting, faulty, threads

    var configuration: ContractRun.Configuration {
      switch self {
      case .roomy: .init()
      case .evicting: .init(isEvicting: true)
      case .faulty: .init(hasFaults: true)
      case .threads: .init(hasThreads: true)
      }
    }
  }

  @Test("Random operations keep the contract, with the seed", arguments: Kind.allCases, [UInt64(1)])
  func oneProcess(kind: Kind, seed: UInt64) async {
    let directory = ContractTest.newDirectory()
    await #expect(processExitsWith: .success) {
      [kind = kind as Kind, seed = seed as UInt64, directory = directory as String] in
      do throws(ContractTest.Failure) {
        try ContractTest.run(seed: seed, operationCount: 800, kind.configuration, directory: directory)
      } catch {
        try "\(error)".write(toFile: directory + ".report", atomically: true, encoding: .utf8)
      }
    }
    expectNoReport(at: directory + ".report", seed: seed)
  }

  @Test(
    "Random operations in several processes, of which some are killed, keep the contract, with the seed",
    arguments: [false, true])
  func processes(isEvicting: Bool) async {
    let directory = ContractTest.newDirectory()
    let seed: UInt64 = 1
    await #expect(processExitsWith: .success) {
      [isEvicting = isEvicting as Bool, seed = seed as UInt64, directory = directory as String] in
      let outcome = ContractProcesses(seed: seed, isEvicting: isEvicting, directory: directory).run(seconds: 2)
      let isEmpty = outcome.foundCount == 0
      let text = outcome.violation ?? (isEmpty ? "nothing was found in \(outcome.checkCount) checks" : nil)
      try text?.write(toFile: directory + ".failure", atomically: true, encoding: .utf8)
    }
    expectNoReport(at: directory + ".failure", seed: seed)
  }

  private func expectNoReport(at path: String, seed: UInt64, sourceLocation: SourceLocation = #_sourceLocation) {
    guard let text = try? String(contentsOfFile: path, encoding: .utf8) else { return }
    unlink(path)
    Issue.record("seed \(seed): \(text)", sourceLocation: sourceLocation)
  }
}
