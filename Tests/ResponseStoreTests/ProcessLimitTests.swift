import CDiskFaults
import CacheModel
import Foundation
import Glibc
import HTTPCaching
import ResponseStore
import Testing

/// A limit of this process.
private enum Limit {
  case descriptors, fileSize, addressSpace

  private var resource: __rlimit_resource_t {
    switch self {
    case .descriptors: __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
    case .fileSize: __rlimit_resource_t(RLIMIT_FSIZE.rawValue)
    case .addressSpace: __rlimit_resource_t(RLIMIT_AS.rawValue)
    }
  }

  /// Runs `body` with a lower limit.
  func whileLowered<R>(to value: Int, _ body: () throws -> R) rethrows -> R {
    var limit = rlimit()
    getrlimit(resource, &limit)
    let before = limit.rlim_cur
    defer {
      limit.rlim_cur = before
      setrlimit(resource, &limit)
    }
    limit.rlim_cur = rlim_t(value)
    guard setrlimit(resource, &limit) == 0 else { exit(90) }
    return try body()
  }
}

/// Lets the signal for a file at its limit end the process. Threads of the test library block it.
private func receiveSignalOfFileSize() {
  signal(SIGXFSZ, SIG_DFL)
  var signals = sigset_t()
  sigemptyset(&signals)
  sigaddset(&signals, SIGXFSZ)
  pthread_sigmask(SIG_UNBLOCK, &signals, nil)
}

/// Opens a store; ends the process unless that succeeds or throws an error whose remedy is about the limit.
private func openAtLimit(
  _ directory: String, _ options: ResponseStore.Options, remedy: String
) -> ResponseStore? {
  do throws(StoreError) {
    return try ResponseStore.open(directory: directory, options: options)
  } catch {
    guard error.code == .limitReached, error.remedy.contains(remedy) else {
      print(error)
      exit(91)
    }
    return nil
  }
}

/// Returns the limit that leaves this number of descriptors free. The process may have inherited any others.
private func descriptorLimit(withFree count: Int) -> Int {
  var limit = 0
  var freeCount = 0
  while freeCount < count || fcntl(Int32(limit), F_GETFD) >= 0 {
    if fcntl(Int32(limit), F_GETFD) < 0 { freeCount += 1 }
    limit += 1
  }
  return limit
}

@Suite("At the limits of the process", .endsFixtures)
struct ProcessLimitTests {
  private static let url = "http://a.example/"

  /// Creates a store with one response, and closes it.
  private func prepared() throws -> StoreFixture {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try fixture.store.flush()
    fixture.close()
    return fixture
  }

  @Test("On a machine whose pages are larger than those of LMDB, opening throws and changes nothing")
  func pageSize() async throws {
    let fixture = try prepared()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      disk_faults_set_page_size(64 << 10)
      do throws(StoreError) {
        _ = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
        exit(11)
      } catch {
        guard error.code == .unsupportedSystem else { exit(12) }
      }
    }
    try fixture.open()
    #expect(fixture.body(Self.url) != nil)
  }

  @Test("With too many open files, opening throws an error about that, and nothing is lost", arguments: [false, true])
  func descriptors(isInUse: Bool) async throws {
    let fixture = try prepared()
    if isInUse { try fixture.open() }
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let options = quietOptions(capacity: 16 << 20)
      var failureCount = 0
      for spareCount in 0..<40 {
        let store = Limit.descriptors.whileLowered(to: descriptorLimit(withFree: spareCount)) {
          openAtLimit(directory, options, remedy: "limit on open files")
        }
        guard let store else {
          failureCount += 1
          continue
        }
        guard store.lookup(RequestKey(urlString: Self.url)!) != nil else { exit(11) }
        store.close()
      }
      guard (8..<30).contains(failureCount) else { exit(12) }
    }
    if !isInUse { try fixture.open() }
    #expect(fixture.body(Self.url) != nil)
  }

  @Test(
    "With a limit on file sizes below the capacity, opening throws an error about that, without a signal",
    arguments: [true, false])
  func fileSizeOnOpening(isNew: Bool) async throws {
    let fixture = try prepared()
    if isNew { fixture.remove() }
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      receiveSignalOfFileSize()
      for limit in [0, 1, 100, 4096, 5000, 8192, 65_536, 100_000, 1 << 20, 8 << 20] {
        let store = Limit.fileSize.whileLowered(to: limit) {
          openAtLimit(directory, quietOptions(capacity: 16 << 20), remedy: "limit on file sizes")
        }
        guard store == nil else { exit(11) }
      }
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      store.store(childResponse(Self.url))
      try store.flush()
      store.close()
    }
    try fixture.open()
    #expect(fixture.body(Self.url) != nil)
  }

  @Test("Without enough address space, opening throws an error about that")
  func addressSpaceOnOpening() async throws {
    let fixture = try prepared()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let pages = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8).prefix { $0.isNumber }
      let used = (Int(pages) ?? 0) * Int(getpagesize())
      for spare in [1 << 20, 64 << 20, 512 << 20] {
        let store = Limit.addressSpace.whileLowered(to: used + spare) {
          openAtLimit(directory, quietOptions(capacity: 1 << 30), remedy: "limits on memory")
        }
        guard store == nil else { exit(11) }
      }
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      guard store.lookup(RequestKey(urlString: Self.url)!) != nil else { exit(12) }
      store.close()
    }
    try fixture.open()
    #expect(fixture.body(Self.url) != nil)
  }

  @Test(
    "At the limit on file sizes, writes are dropped and counted without a signal; the rest goes on, and storing resumes",
    arguments: [false, true])
  func fileSizeWhileOpen(background: Bool) async throws {
    let fixture = try prepared()
    await #expect(processExitsWith: .success) {
      [directory = fixture.directory as String, background = background as Bool] in
      receiveSignalOfFileSize()
      let lines = LogLines()
      var options = quietOptions(capacity: 16 << 20, log: lines)
      options.runsInBackground = background
      let store = try ResponseStore.open(directory: directory, options: options)
      let body = Data(repeating: 7, count: 10_000)
      func storeAll() {
        for number in 0..<200 { store.store(childResponse("http://a.example/\(number)", body: body)) }
      }
      var failure: StoreError?
      // The first limit is in the middle of a page, so that a write is cut.
      for limit in [1_000_001, 600_000] {
        Limit.fileSize.whileLowered(to: limit) {
          storeAll()
          do throws(StoreError) { try store.flush() } catch { failure = error }
        }
        guard let failure, failure.code == .storage, failure.remedy.contains("limit on file sizes") else { exit(11) }
      }
      guard store.statistics.droppedWrites > 0 else { exit(12) }
      guard lines.all.contains(where: { $0.contains("limit on file sizes") }) else { exit(13) }
      guard !lines.all.contains(where: { $0.contains("The disk is full") }) else { exit(14) }
      guard store.lookup(RequestKey(urlString: Self.url)!) != nil else { exit(15) }
      guard !store.hasFailed else { exit(16) }
      storeAll()
      try store.flush()
      guard store.lookup(RequestKey(urlString: "http://a.example/199")!) != nil else { exit(17) }
      // Far below the size of the removal log.
      Limit.fileSize.whileLowered(to: 1000) { store.remove(.host("a.example")) }
      guard store.lookup(RequestKey(urlString: Self.url)!) == nil else { exit(18) }
      guard !store.hasFailed else { exit(19) }
      store.close()
    }
    try fixture.open()
    #expect(fixture.body(Self.url) == nil)
  }
}
