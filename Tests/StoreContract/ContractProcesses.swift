import FoundationEssentials
import Glibc
import ResponseStore

/// The contract test in several processes on one directory, of which some are killed at random moments.
///
/// The process that runs it forks the others. It must have no other thread, and opens no store itself.
package struct ContractProcesses {
  package let seed: UInt64
  package let configuration: ContractRun.Configuration
  let processCount: Int
  let directory: String
  private let ledger: Ledger

  package init(
    seed: UInt64, isEvicting: Bool, processCount: Int = 3, directory: String = ContractTest.newDirectory()
  ) {
    (self.seed, self.processCount, self.directory) = (seed, processCount, directory)
    configuration = ContractRun.Configuration(isEvicting: isEvicting, hasThreads: true)
    ledger = ContractRun.ledger(processCount: processCount, isEvicting: isEvicting)
  }

  /// The counts of a run, and the violation that ended it.
  package struct Outcome: Sendable {
    package var killCount = 0
    package var checkCount = 0
    package var foundCount = 0
    package var violation: String?
  }

  private static let stopWord = 0
  private static let foundWord = 1

  /// Runs for a time, or until a promise is broken. On a busy machine, runs until something could be compared.
  package func run(seconds: Double) -> Outcome {
    ContractTest.remove(directory)
    defer { ContractTest.remove(directory) }
    var random = SeededRandom(seed)
    var outcome = Outcome()
    let deadline = ContinuousClock.now + .seconds(seconds)
    repeat {
      outcome.violation = runRound(&random, &outcome)
      outcome.foundCount = Int(ledger.word(Self.foundWord))
    } while outcome.violation == nil
      && (.now < deadline || outcome.foundCount == 0 && .now < deadline + .seconds(60))
    return outcome
  }

  /// Kills processes one after the other, then all, and checks what they leave.
  private func runRound(_ random: inout SeededRandom, _ outcome: inout Outcome) -> String? {
    ledger.setWord(Self.stopWord, 0)
    var children = (0..<processCount).map { start($0, seed: random.next()) }
    for _ in 0..<random.below(8) {
      waitForWork(upTo: random.isBelow(0.3) ? 20 : 2000, &random)
      let victim = random.below(processCount)
      if let text = kill(children[victim], number: victim) { return end(children, text) }
      outcome.killCount += 1
      children[victim] = start(victim, seed: random.next())
    }
    waitForWork(upTo: 2000, &random)
    // Either all are killed, or they flush and close.
    if random.isBelow(0.7) {
      for (number, child) in children.enumerated() {
        if let text = kill(child, number: number) { return end(children, text) }
      }
      outcome.killCount += processCount
    } else {
      ledger.setWord(Self.stopWord, 1)
      for (number, child) in children.enumerated() {
        if let text = wait(for: child) { return end(children, text) }
        // Its accepted writes are committed.
        ledger.processDied(number)
      }
    }
    outcome.checkCount += 1
    return wait(for: fork { () throws(Failure) in try check() })
  }

  /// Waits until the processes have done a random part of some work, for a second at most.
  private func waitForWork(upTo positionCount: Int, _ random: inout SeededRandom) {
    let target = ledger.position + UInt64(random.below(positionCount))
    for _ in 0..<5000 where ledger.position < target { usleep(200) }
    usleep(UInt32(random.below(1000)))
  }

  /// Ends all processes after a violation, and returns it.
  private func end(_ children: [pid_t], _ text: String) -> String {
    for child in children {
      Glibc.kill(child, SIGKILL)
      waitpid(child, nil, 0)
    }
    return text
  }

  private func kill(_ child: pid_t, number: Int) -> String? {
    Glibc.kill(child, SIGKILL)
    let text = wait(for: child)
    ledger.processDied(number)
    return text
  }

  // MARK: Processes

  private var reportPath: String { directory + ".report" }

  private func start(_ number: Int, seed: UInt64) -> pid_t {
    fork { () throws(Failure) in try work(number, seed: seed) }
  }

  /// Runs `body` in a child process, which writes a violation to the report.
  private func fork(_ body: @escaping @Sendable () throws(Failure) -> Void) -> pid_t {
    typealias Fork = @convention(c) () -> pid_t
    let child = unsafeBitCast(dlsym(nil, "fork"), to: Fork.self)()
    guard child == 0 else { return child }
    // In case it hangs, or its parent is killed. Threads of a dispatch queue block the signal.
    var alarmSignal = sigset_t()
    sigemptyset(&alarmSignal)
    sigaddset(&alarmSignal, SIGALRM)
    pthread_sigmask(SIG_UNBLOCK, &alarmSignal, nil)
    alarm(120)
    // Swift's runtime knows this thread by its number in the parent. If it met another one at a value that is created
    // on first use, both would wait for ever. A new thread has a number of its own.
    let thread = BackgroundThread { end(after: body) }
    while thread != nil { pause() }
    _exit(2)
  }

  private func end(after body: () throws(Failure) -> Void) {
    do throws(Failure) {
      try body()
      _exit(0)
    } catch {
      let text = "\(error.violation)\nafter:\n  \(error.history.suffix(40).joined(separator: "\n  "))"
      _ = FileManager.default.createFile(atPath: reportPath, contents: Data(text.utf8))
      _exit(1)
    }
  }

  /// Waits for a child process to end; returns the violation if it was not killed and did not succeed.
  private func wait(for child: pid_t) -> String? {
    var status: CInt = 0
    while waitpid(child, &status, 0) != child {}
    if status == 0 || status & 0x7f == SIGKILL { return nil }
    defer { unlink(reportPath) }
    let report = FileManager.default.contents(atPath: reportPath).map { String(decoding: $0, as: UTF8.self) }
    return report ?? "a process ended with status \(status)"
  }

  private struct Failure: Error {
    let violation: Ledger.Violation
    let history: [String]
  }

  /// Does random operations until all are told to stop.
  private func work(_ number: Int, seed: UInt64) throws(Failure) {
    var run: ContractRun?
    do throws(Ledger.Violation) {
      let new = try ContractRun(configuration, directory: directory, ledger: ledger, process: number, isAlone: false)
      run = new
      var random = SeededRandom(seed)
      while ledger.word(Self.stopWord) == 0 { try new.perform(ContractOperation.random(&random)) }
      try new.flush()
      new.close()
    } catch {
      throw Failure(violation: error, history: run?.history ?? [])
    }
  }

  /// Compares everything that a process finds which has the directory alone, and makes it the expected state.
  private func check() throws(Failure) {
    do throws(Ledger.Violation) {
      let run = try ContractRun(configuration, directory: directory, ledger: ledger, process: 0, isAlone: false)
      if let violation = run.store.checkInvariants().first { throw Ledger.Violation(.unsound, violation) }
      for slot in 0..<ContractContent.slotCount {
        let found = try run.check(slot)
        ledger.settle(slot, found: found.map { max($0.identity.version, $0.identity.revision) } ?? 0)
        if found != nil { ledger.addToWord(Self.foundWord) }
      }
      try run.flush()
      // The store applies its capacity behind its opening.
      try run.drain()
      try run.checkBound()
      run.close()
    } catch {
      throw Failure(violation: error, history: [])
    }
  }
}
