import CacheModel
import Foundation
import Glibc
import HTTPCaching
import ResponseStore
import Synchronization
import Testing

/// A program deletes files of the directory at any moment while processes read, write, purge and open it.
///
/// Each process stores versions under keys of its own, and looks all keys up. Once a purge has returned, no process may
/// find a version whose store had returned before the purge began.
@Suite("A program that deletes files")
struct CleanerTests {
  static let processCount = 3
  private static let host = "a.example"

  static func key(_ process: Int) -> RequestKey { RequestKey(urlString: "http://\(host)/\(process)")! }

  /// Numbers that all processes map.
  struct Ledger: @unchecked Sendable {
    // Sendable: every access is atomic.
    private let words: UnsafeMutablePointer<Atomic<UInt64>>

    init?(_ path: String) {
      let file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
      defer { close(file) }
      guard file >= 0, ftruncate(file, 4096) == 0,
        let memory = mmap(nil, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), memory != MAP_FAILED
      else { return nil }
      words = memory.assumingMemoryBound(to: Atomic<UInt64>.self)
    }

    /// Whether the run is over.
    var isOver: Bool {
      get { words[0].load(ordering: .sequentiallyConsistent) != 0 }
      nonmutating set { words[0].store(newValue ? 1 : 0, ordering: .sequentiallyConsistent) }
    }
    /// The number of purges that have returned.
    var purgeCount: UInt64 { words[1].load(ordering: .sequentiallyConsistent) }
    func countPurge() { words[1].add(1, ordering: .sequentiallyConsistent) }
    /// The number of lookups that have found a response.
    var hitCount: UInt64 { words[2].load(ordering: .sequentiallyConsistent) }
    func countHit() { words[2].add(1, ordering: .sequentiallyConsistent) }

    /// The last version of a process whose store has returned.
    func stored(_ process: Int) -> UInt64 { words[16 + process].load(ordering: .sequentiallyConsistent) }
    func setStored(_ process: Int, _ version: UInt64) {
      words[16 + process].store(version, ordering: .sequentiallyConsistent)
    }
    /// The last version of a process that a purge which has returned covers.
    func purged(_ process: Int) -> UInt64 { words[32 + process].load(ordering: .sequentiallyConsistent) }
    func raisePurged(_ process: Int, to version: UInt64) {
      words[32 + process].max(version, ordering: .sequentiallyConsistent)
    }
  }

  /// One process of the run.
  struct Worker {
    let directory: String
    let ledger: Ledger
    let number: Int

    private var options: ResponseStore.Options {
      var options = ResponseStore.Options(capacityByteCount: 4 << 20)
      options.openTimeout = .seconds(30)
      options.directoryCheckInterval = .zero
      options.log = { _ in }
      return options
    }

    /// Opens the store. While the files are being deleted, that may fail.
    private func open() -> ResponseStore? {
      while !ledger.isOver {
        do throws(StoreError) {
          return try ResponseStore.open(directory: directory, options: options)
        } catch {
          // A file may be deleted in the middle of it. Another directory, or another version, is a mistake.
          if [.otherVersionInUse, .notAStore, .untrustedDirectory].contains(error.code) {
            print("process \(number): \(error)")
            exit(10)
          }
        }
        usleep(1000)
      }
      return nil
    }

    func run(seed: UInt64) {
      var random = SeededGenerator(seed: seed &+ UInt64(number))
      var version: UInt64 = 0
      while !ledger.isOver, let store = open() {
        let operationCount = Int.random(in: 20...400, using: &random)
        for _ in 0..<operationCount where !ledger.isOver && !store.hasFailed {
          switch Int.random(in: 0..<100, using: &random) {
          case 0..<20:
            version += 1
            store.store(childResponse("http://\(host)/\(number)", body: Data("\(version)".utf8)))
            ledger.setStored(number, version)
          case 20..<24:
            let before = (0..<processCount).map { ledger.stored($0) }
            guard store.removeDurably([Removal(.host(host))]) != nil else { break }
            for (process, version) in before.enumerated() { ledger.raisePurged(process, to: version) }
            ledger.countPurge()
          case 24..<26:
            // Fails while files are being deleted.
            try? store.flush()
          default:
            let process = Int.random(in: 0..<processCount, using: &random)
            let purged = ledger.purged(process)
            guard let body = store.lookup(key(process))?.body else { break }
            ledger.countHit()
            guard let found = UInt64(String(decoding: body, as: UTF8.self)), found > purged else {
              print("process \(number) found version \(String(decoding: body, as: UTF8.self)), purged up to \(purged)")
              exit(11)
            }
          }
          usleep(UInt32.random(in: 0...200, using: &random))
        }
        store.close()
      }
    }
  }

  @Test("No purged response is found, and the store works afterwards, with the seed", arguments: [UInt64(1)])
  func deletions(seed: UInt64) async throws {
    let directory = memoryDirectory(for: 64 << 20)
    let ledgerPath = directory + ".ledger"
    let ledger = try #require(Ledger(ledgerPath))
    defer {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(atPath: directory)
      unlink(ledgerPath)
    }
    try ResponseStore.open(directory: directory, options: quietOptions()).close()
    let cleaner = onCleanerThread(directory, ledger, seed: seed)
    await withTaskGroup(of: Void.self) { group in
      for number in 0..<Self.processCount {
        group.addTask {
          await #expect(processExitsWith: .success) {
            [
              directory = directory as String, ledgerPath = ledgerPath as String, number = number as Int,
              seed = seed as UInt64
            ] in
            guard let ledger = Ledger(ledgerPath) else { exit(9) }
            Worker(directory: directory, ledger: ledger, number: number).run(seed: seed &* 31)
          }
        }
      }
    }
    #expect(cleaner.wait(timeout: .seconds(60)) { $0 ? true : nil } == true)
    #expect(ledger.purgeCount >= 20 && ledger.hitCount >= 200)
    let store = try ResponseStore.open(directory: directory, options: quietOptions())
    store.store(childResponse("http://b.example/"))
    while store.writePending() {}
    #expect(store.lookup(RequestKey(urlString: "http://b.example/")!) != nil)
    #expect(store.checkInvariants() == [])
    store.close()
  }

  /// Deletes files for some seconds and until the processes have purged and found enough, and ends the run.
  private func onCleanerThread(_ directory: String, _ ledger: Ledger, seed: UInt64) -> Monitor<Bool> {
    let hasEnded = Monitor(false)
    let seconds = ProcessInfo.processInfo.environment["CLEANER_SECONDS"].flatMap { Double($0) } ?? 6
    Thread {
      var random = SeededGenerator(seed: seed)
      let end = ContinuousClock.now + .seconds(seconds)
      let limit = end + .seconds(100)
      while ContinuousClock.now < end || ledger.purgeCount < 20 || ledger.hitCount < 200, ContinuousClock.now < limit {
        usleep(UInt32.random(in: 0...150_000, using: &random))
        let names = ((try? FileManager.default.subpathsOfDirectory(atPath: directory)) ?? []).sorted()
        // One file, or all of them.
        let isAll = Int.random(in: 0..<8, using: &random) == 0
        let chosen = isAll ? names : names.randomElement(using: &random).map { [$0] } ?? []
        for name in chosen { unlink(directory + "/" + name) }
      }
      ledger.isOver = true
      hasEnded.update { $0 = true }
    }.start()
    return hasEnded
  }
}
