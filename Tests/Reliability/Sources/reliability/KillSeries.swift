import FoundationEssentials
import Glibc
import StoreContract

/// Kills a process under full load at random times, repeatedly in the same directory.
///
/// The counters of the directory lose at most the last lookup of each thread. Most processes are killed while bodies
/// arrive in pieces. The next process frees what they left of them, which is within the capacity until then.
struct KillSeries {
  static let keyCount = 1024
  let setting: RunConfiguration
  let directory: String

  /// A store that never evicts, in which no flushed response may be missing, and a store that always evicts.
  enum Kind: String, CaseIterable {
    case roomy, evicting
    var capacity: Int { self == .roomy ? 256 << 20 : 4 << 20 }
  }

  func run(killCount: Int) -> Bool {
    let started = now()
    var isGood = true
    var found = 0
    var recreatedCount = 0
    var comparedCount = 0
    var bodyCount = 0
    for kind in Kind.allCases {
      var random = SeededRandom(setting.seed &+ UInt64(kind.capacity))
      let count = killCount / 2
      for round in 0..<count {
        // Start with an empty directory every 50 rounds, so that kills also hit the creation of a store.
        if round % 50 == 0 { prepare(kind) }
        let seed = random.next() >> 16
        let delay = random.isBelow(0.2) ? random.below(15_000) : random.below(300_000)
        let (text, entryCount, arrivingCount) = killOnce(kind, seed: seed, delay: delay)
        bodyCount += arrivingCount
        found += entryCount
        if text.contains("starts empty") { recreatedCount += 1 }
        if text.contains("counters compared") { comparedCount += 1 }
        let isBad = text.contains("FAILED")
        if isBad {
          isGood = false
          say("kill \(kind.rawValue) round \(round) seed \(seed) after \(delay) µs:\n\(text)")
          prepare(kind)
        } else if setting.isVerbose || round % 50 == 49 {
          say("kill \(kind.rawValue): \(round + 1) of \(count), last seed \(seed), \(entryCount) entries found")
        }
      }
    }
    // Kills of which none leaves a response, or a part of a body, show nothing.
    isGood = isGood && found > 0 && bodyCount > 0
    let seconds = Int(now() - started)
    setting.report(
      "kill",
      "\(killCount / 2 * 2) kills (seed \(setting.seed)), \(found) responses compared, "
        + "\(bodyCount) bodies were arriving, \(recreatedCount) stores recreated empty, "
        + "counters of lookups compared after \(comparedCount) kills, "
        + "\(seconds) s: \(isGood ? "OK" : "FAILED")")
    return isGood
  }

  private func prepare(_ kind: Kind) {
    makeDirectory(directory)
    Ledger(path: directory + "/ledger", keyCount: Self.keyCount).isEvicting = kind == .evicting
  }

  private func killOnce(_ kind: Kind, seed: UInt64, delay: Int) -> (String, entryCount: Int, arrivingCount: Int) {
    let arguments = [directory + "/store", directory + "/ledger", "\(Self.keyCount)", "\(kind.capacity)"]
    let worker = Child.start(["work"] + arguments + ["\(seed)"], outputPath: directory + "/worker.log")
    usleep(UInt32(delay))
    worker.kill(SIGKILL)
    let workerEnd = worker.wait()
    let ledger = Ledger(path: directory + "/ledger", keyCount: Self.keyCount)
    let words = (0..<Worker.hostCount).map { Worker.arrivingWord(host: $0) }
    let arrivingCount = words.filter { ledger.word($0) != 0 }.count
    for word in words { ledger.setWord(word, 0) }
    let (end, output) = Child.run(["check"] + arguments + ["settle"], outputPath: directory + "/checker.log")
    let entries = output.split(separator: "\n").first { $0.hasPrefix("entries ") }
    let entryCount = entries.flatMap { Int($0.dropFirst(8)) } ?? 0
    guard workerEnd == .signaled(SIGKILL), end == .exited(0) else {
      return ("FAILED: worker \(workerEnd)\n\(worker.output)checker \(end)\n\(output)", entryCount, arrivingCount)
    }
    return (worker.output + output, entryCount, arrivingCount)
  }
}
