import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// Passes a path for a store to `body` and removes the directory at the end.
func withPath<R>(_ body: (String) throws -> R) throws -> R {
  let path = FileManager.default.temporaryDirectory.appendingPathComponent("open-\(UUID().uuidString)").path
  // The directory may not exist.
  defer { try? FileManager.default.removeItem(atPath: path) }
  return try body(path)
}

func quietOptions(capacity: Int = 4 << 20, log: LogLines? = nil) -> ResponseStore.Options {
  var options = ResponseStore.Options(capacityByteCount: capacity)
  options.runsInBackground = false
  // A busy machine may take long to start a thread.
  options.openTimeout = .seconds(30)
  options.log = { line in log?.append(line) }
  return options
}

@Suite("Opening", .endsFixtures)
struct OpeningTests {
  private func mode(_ path: String) -> mode_t {
    var status = stat()
    lstat(path, &status)
    return status.st_mode & 0o7777
  }

  private func code(_ directory: String, _ options: ResponseStore.Options = quietOptions()) -> StoreError.Code? {
    do {
      try ResponseStore.open(directory: directory, options: options).close()
      return nil
    } catch {
      #expect(error.description.hasPrefix("Cannot use the response store at \(error.directory): "))
      #expect(!error.remedy.isEmpty)
      return error.code
    }
  }

  @Test("Missing directories are created with access only for this user", arguments: ["", "/"])
  func missing(end: String) throws {
    try withPath { path in
      let store = try ResponseStore.open(directory: path + "/a/b" + end, options: quietOptions())
      defer { store.close() }
      #expect(store.directory == path + "/a/b")
      #expect(mode(path + "/a/b") == 0o700)
      for name in try FileManager.default.subpathsOfDirectory(atPath: path + "/a/b") {
        #expect(mode(path + "/a/b/" + name) == (name == "data-1" ? 0o700 : 0o600), "\(name)")
      }
      #expect(store.checkInvariants() == [])
    }
  }

  @Test("Opening fails on a file, an empty path, and a path with a zero byte")
  func unusable() throws {
    try withPath { path in
      try Data("file".utf8).write(to: URL(fileURLWithPath: path))
      #expect(code(path) == .unusableDirectory)
      #expect(code(path + "/below") == .unusableDirectory)
      #expect(try Data(contentsOf: URL(fileURLWithPath: path)) == Data("file".utf8))
      #expect(code("") == .unusableDirectory)
      #expect(code(path + "\0x") == .unusableDirectory)
    }
  }

  @Test(
    "Without permission, opening throws and changes nothing", .enabled(if: geteuid() == 0, "needs root, to drop it"))
  func noPermission() async throws {
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("open-\(UUID().uuidString)").path
    defer { try? FileManager.default.removeItem(atPath: path) }
    try FileManager.default.createDirectory(
      atPath: path, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o755])
    await #expect(processExitsWith: .success) { [path = path as String] in
      guard seteuid(65534) == 0 else { exit(2) }
      for (directory, expected) in [
        (path, StoreError.Code.untrustedDirectory), (path + "/new", .unusableDirectory),
      ] {
        do throws(StoreError) {
          _ = try ResponseStore.open(directory: directory, options: quietOptions())
          exit(3)
        } catch {
          if error.code != expected { exit(4) }
        }
      }
      var options = quietOptions()
      options.allowsUntrustedDirectory = true
      do throws(StoreError) {
        _ = try ResponseStore.open(directory: path, options: options)
        exit(5)
      } catch {
        if error.code != .unusableDirectory { exit(6) }
      }
    }
    #expect(try FileManager.default.contentsOfDirectory(atPath: path) == [])
  }

  @Test("A symbolic link is rejected unless the options allow it", arguments: ["", "/"])
  func symbolicLink(end: String) throws {
    try withPath { path in
      try FileManager.default.createDirectory(atPath: path + "/real", withIntermediateDirectories: true)
      try FileManager.default.createSymbolicLink(atPath: path + "/link", withDestinationPath: "real")
      #expect(code(path + "/link" + end) == .untrustedDirectory)
      #expect(try FileManager.default.contentsOfDirectory(atPath: path + "/real") == [])
      var options = quietOptions()
      options.allowsUntrustedDirectory = true
      #expect(code(path + "/link" + end, options) == nil)
      #expect(code(path + "/real") == nil)
    }
  }

  @Test("A relative path stays valid after the working directory changes")
  func relative() async throws {
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("open-\(UUID().uuidString)").path
    defer { try? FileManager.default.removeItem(atPath: path) }
    try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    await #expect(processExitsWith: .success) { [path = path as String] in
      guard chdir(path) == 0 else { exit(2) }
      let store = try ResponseStore.open(directory: "sub/cache", options: quietOptions())
      guard chdir("/") == 0, store.directory == path + "/sub/cache", store.diskByteCount > 0 else { exit(3) }
      guard store.checkInvariants() == [] else { exit(4) }
      store.close()
    }
  }

  // MARK: Files of other programs

  @Test("A text file in the place of the data file is not changed", arguments: [1, 20, 5000, 20_000])
  func text(size: Int) throws {
    try withPath { path in
      try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
      let text = Data(repeating: UInt8(ascii: "t"), count: size)
      try text.write(to: URL(fileURLWithPath: path + "/data.mdb"))
      #expect(code(path) == .notAStore)
      #expect(try Data(contentsOf: URL(fileURLWithPath: path + "/data.mdb")) == text)
    }
  }

  @Test("The LMDB file of another program is not changed")
  func otherProgram() throws {
    try withPath { path in
      try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
      try {
        let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20))
        let table = try environment.table("meta", key: BytesCodec.self, value: BytesCodec.self)
        try environment.write { (transaction) throws(LMDBError) in
          try table.put([1], for: [2], in: transaction)
        }
      }()
      let before = try Data(contentsOf: URL(fileURLWithPath: path + "/data.mdb"))
      #expect(code(path) == .notAStore)
      #expect(try Data(contentsOf: URL(fileURLWithPath: path + "/data.mdb")) == before)
    }
  }

  @Test("A directory or a pipe in the place of the data file is not a store")
  func notAFile() throws {
    try withPath { path in
      try FileManager.default.createDirectory(atPath: path + "/data.mdb", withIntermediateDirectories: true)
      #expect(code(path) == .notAStore)
      rmdir(path + "/data.mdb")
      mkfifo(path + "/data.mdb", 0o600)
      #expect(code(path) == .notAStore)
    }
  }

  // MARK: Damage

  enum Damage: String, CaseIterable {
    case cut, cutToOnePage, cutToHalf, zeroedMeta, textInMeta, lastPageAbsurd, lostTable
  }

  @Test("A corrupt data file is deleted, and the store starts empty", arguments: Damage.allCases)
  func damaged(damage: Damage) throws {
    let log = LogLines()
    let fixture = try StoreFixture { $0.log = { log.append($0) } }
    for number in 0..<50 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(9000, seed: 1)))
    }
    fixture.drain()
    fixture.close()
    let data = fixture.dataPath("data.mdb")
    var bytes = try Data(contentsOf: URL(fileURLWithPath: data))
    // The file is as long as its map.
    let lastPage = DataFile.usedByteCount(path: data) / 4096 - 1
    switch damage {
    case .cut: bytes = bytes.prefix(lastPage * 4096)
    case .cutToOnePage: bytes = bytes.prefix(4096)
    case .cutToHalf: bytes = bytes.prefix(lastPage / 2 * 4096)
    case .zeroedMeta: bytes.replaceSubrange(0..<8192, with: Data(count: 8192))
    case .textInMeta:
      bytes.replaceSubrange(0..<5, with: Data("hello".utf8) + Data())
      bytes.replaceSubrange(16..<20, with: Data("text".utf8))
    case .lastPageAbsurd: bytes.replaceSubrange(136..<144, with: Data(repeating: 0x7f, count: 8))
    case .lostTable:
      var start = 0
      while let name = bytes.range(of: Data("meta".utf8), in: start..<bytes.count) {
        bytes.replaceSubrange(name, with: Data("lost".utf8))
        start = name.upperBound
      }
    }
    try bytes.write(to: URL(fileURLWithPath: data))
    try fixture.open()
    #expect(fixture.store.entryCount == 0)
    #expect(log.all.count == 1)
    #expect(!FileManager.default.fileExists(atPath: data))
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("A data file of another format version is replaced")
  func otherVersion() throws {
    let log = LogLines()
    let fixture = try StoreFixture { $0.log = { log.append($0) } }
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    try fixture.store.putMetadata([9, 0, 0, 0, 1, 2, 3], named: "format")
    fixture.close()
    try fixture.open()
    #expect(fixture.body("http://a.example/") == nil)
    #expect(log.all.count == 1 && log.all[0].contains("format 9"))
  }

  @Test("Garbage in lock.mdb does no harm if no process has the store open")
  func lockGarbage() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    fixture.close()
    try Data(repeating: 0xA5, count: 9000).write(to: URL(fileURLWithPath: fixture.dataPath("lock.mdb")))
    try fixture.open()
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("A crash between the creation of the file and its tables leaves a store that opens")
  func unfinishedCreation() throws {
    try withPath { path in
      try FileManager.default.createDirectory(atPath: path + "/data-1", withIntermediateDirectories: true)
      try Data("LMDBURLCache response store\n".utf8).write(to: URL(fileURLWithPath: path + "/LMDBURLCache.store"))
      try {
        let environment = try LMDBEnvironment.open(directory: path + "/data-1", options: .init(mapByteCount: 1 << 20))
        _ = try environment.table("meta", key: BytesCodec.self, value: BytesCodec.self)
        _ = try environment.table("heads0", key: BytesCodec.self, value: BytesCodec.self)
      }()
      let store = try ResponseStore.open(directory: path, options: quietOptions())
      #expect(store.checkInvariants() == [])
      store.close()
    }
  }

  // MARK: Repeated opening

  @Test("A directory has one store object, regardless of the paths it is opened with; closing is counted")
  func twice() throws {
    let fixture = try StoreFixture()
    let again = try ResponseStore.open(
      directory: fixture.directory + "/../" + (fixture.directory as NSString).lastPathComponent,
      options: quietOptions(capacity: 8 << 20))
    #expect(again === fixture.store)
    #expect(fixture.store.capacityByteCount == 8 << 20)
    again.close()
    fixture.store.store(fixture.response("http://a.example/"))
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("A closed store that is still referenced does not prevent opening the directory")
  func closedAndReferenced() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    let old = fixture.store
    fixture.close()
    try fixture.open()
    #expect(old !== fixture.store)
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("A failed store misses lookups, throws on flush, and is empty after reopening")
  func failed() throws {
    let log = LogLines()
    let fixture = try StoreFixture { $0.log = { log.append($0) } }
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    fixture.store.fail()
    fixture.store.store(fixture.response("http://a.example/2"))
    #expect(fixture.body("http://a.example/") == nil)
    #expect(fixture.body("http://a.example/2") == nil)
    #expect(fixture.store.statistics.droppedWrites == 1)
    #expect(throws: StoreError.self) { try fixture.store.flush() }
    fixture.store.remove(.everything)
    fixture.close()
    try fixture.open()
    #expect(fixture.body("http://a.example/") == nil)
    fixture.store.store(fixture.response("http://a.example/"))
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("Use after close, closing twice, and too small a capacity trap with a message")
  func traps() async {
    // The child processes create this directory and end before they remove it.
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("open-\(UUID().uuidString)").path
    // The directory is missing if no child has created it; other expectations detect this.
    defer { try? FileManager.default.removeItem(atPath: path) }
    func expectTrap(_ result: ExitTest.Result?, _ text: String, sourceLocation: SourceLocation = #_sourceLocation) {
      let output = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
      #expect(output.contains(text), sourceLocation: sourceLocation)
    }
    expectTrap(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [path = path as String] in
        let store = try ResponseStore.open(directory: path, options: quietOptions())
        store.close()
        _ = store.lookup(RequestKey(urlString: "http://a.example/")!)
      }, "is used after close()")
    expectTrap(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [path = path as String] in
        let store = try ResponseStore.open(directory: path, options: quietOptions())
        store.close()
        store.remove(.everything)
      }, "is used after close()")
    expectTrap(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [path = path as String] in
        let store = try ResponseStore.open(directory: path, options: quietOptions())
        store.close()
        store.close()
      }, "closed more often than it was opened")
    for capacity in [-1, 0, (1 << 20) - 1] {
      expectTrap(
        await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
          [path = path as String, capacity = capacity as Int] in
          _ = try ResponseStore.open(directory: path, options: quietOptions(capacity: capacity))
        }, "needs a capacity of at least 1048576 bytes")
    }
    expectTrap(
      await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [path = path as String] in
        try ResponseStore.open(directory: path, options: quietOptions()).capacityByteCount = 5
      }, "needs a capacity of at least 1048576 bytes")
  }
}
