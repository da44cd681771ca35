import Foundation
import Glibc
import LMDB
import ResponseStore
import SystemFiles
import Testing

/// Directories that a process with another version of the storage format uses, or another program.
@Suite("Directories of other versions and programs")
struct OtherVersionTests {
  /// A directory with the locks that a running process of its version holds.
  ///
  /// The parent of the process that opens the directory holds them.
  private struct RunningProcess {
    private let users: CInt
    private let readers: LockDescriptor

    init(_ directory: String, data: String) throws {
      users = Glibc.open(directory + "/users.lock", O_RDWR | O_CLOEXEC)
      #expect(flock(users, LOCK_SH | LOCK_NB) == 0)
      // LMDB's lock on the first byte of its lock file. It belongs to the open file, because a lock of the process
      // would end when the test reads the file and closes it.
      readers = try #require(LockDescriptor(data + "/lock.mdb", O_RDWR | O_CREAT | O_CLOEXEC, mode: 0o600))
      #expect(readers.shareBytes(0..<1))
    }

    func end() {
      close(users)
      readers.unlockBytes(0..<1)
    }
  }

  /// The contents, the time of the last change and the inode of each file and folder.
  private func snapshot(_ directory: String) throws -> [String: String] {
    var files: [String: String] = [:]
    for name in try FileManager.default.subpathsOfDirectory(atPath: directory) + ["."] {
      let path = directory + "/" + name
      var status = stat()
      #expect(lstat(path, &status) == 0)
      var text = "\(status.st_ino) \(status.st_mtim.tv_sec).\(status.st_mtim.tv_nsec) \(status.st_size)"
      if status.st_mode & S_IFMT == S_IFREG {
        text += " \(try Data(contentsOf: URL(fileURLWithPath: path)).base64EncodedString().hashValue)"
      }
      files[name] = text
    }
    return files
  }

  /// Returns a directory that a version has written.
  private func directory(ofFormat format: UInt32) throws -> String {
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("version-\(UUID().uuidString)").path
    guard format > StorageFormat.version else {
      let golden = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent("Golden")
      try FileManager.default.copyItem(atPath: golden.path + "/format-\(format)", toPath: path)
      chmod(path, 0o700)
      return path
    }
    // A later version keeps the word with its number.
    let store = try ResponseStore.open(directory: path, options: quietOptions())
    store.store(childResponse("http://a.example/"))
    while store.writePending() {}
    StatusPage(directory: path)[StatusPage.format] = UInt64(format)
    store.close()
    return path
  }

  enum Way: String, CaseIterable, Codable {
    case use, inspection, removal
  }

  @Test(
    "A directory that a process of another version uses is refused, and no byte and no time of a file changes",
    arguments: [4, 5, 6, StorageFormat.version + 1], Way.allCases)
  func inUse(format: UInt32, way: Way) async throws {
    for hasMarker in [true, false] {
      let path = try directory(ofFormat: format)
      // A leftover directory does no harm.
      defer { try? FileManager.default.removeItem(atPath: path) }
      let data = format < 6 ? path : path + "/data-1"
      let process = try RunningProcess(path, data: data)
      defer { process.end() }
      if !hasMarker { unlink(path + "/LMDBURLCache.store") }
      let before = try snapshot(path)
      await #expect(processExitsWith: .success) { [path = path as String, way = way as Way] in
        do throws(StoreError) {
          switch way {
          case .use: _ = try ResponseStore.open(directory: path, options: quietOptions())
          case .inspection: _ = try ResponseStore.open(directory: path, options: .existing)
          case .removal: try ResponseStore.remove(Removal(.everything), fromStoreInUseAt: path)
          }
          exit(2)
        } catch {
          guard error.code == .otherVersionInUse || way != .use && error.code == .unsupportedFormat else {
            print(error)
            exit(3)
          }
        }
      }
      #expect(try snapshot(path) == before)
    }
  }

  @Test(
    "A directory that a process of an earlier version uses is not opened after its users.lock was deleted",
    arguments: [4, 5, 6])
  func inUseWithoutLockFile(format: UInt32) async throws {
    let path = try directory(ofFormat: format)
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(atPath: path) }
    let process = try RunningProcess(path, data: format < 6 ? path : path + "/data-1")
    defer { process.end() }
    unlink(path + "/users.lock")
    let before = try snapshot(path)
    await #expect(processExitsWith: .success) { [path = path as String] in
      var options = quietOptions()
      options.openTimeout = .milliseconds(20)
      do throws(StoreError) {
        _ = try ResponseStore.open(directory: path, options: options)
        exit(2)
      } catch {
        guard error.code == .busy else {
          print(error)
          exit(3)
        }
      }
    }
    #expect(try snapshot(path) == before)
  }

  @Test(
    "An inspection refuses a directory that another version has used, and no byte and no time of a file changes",
    arguments: [4, 5, 6, StorageFormat.version + 1])
  func inspection(format: UInt32) throws {
    let path = try directory(ofFormat: format)
    defer { try? FileManager.default.removeItem(atPath: path) }
    let before = try snapshot(path)
    #expect {
      _ = try ResponseStore.open(directory: path, options: .existing)
    } throws: {
      ($0 as? StoreError)?.code == .unsupportedFormat
    }
    #expect(try snapshot(path) == before)
  }

  @Test("A directory whose former users have ended starts empty", arguments: [4, 5, 6])
  func ended(format: UInt32) throws {
    let path = try directory(ofFormat: format)
    defer { try? FileManager.default.removeItem(atPath: path) }
    let store = try ResponseStore.open(directory: path, options: quietOptions())
    #expect(store.entryCount == 0)
    #expect(store.checkInvariants() == [])
    store.close()
  }

  @Test(
    "In a directory with the data of another program, opening changes and creates nothing", arguments: ["", "/data-1"])
  func otherProgram(folder: String) throws {
    try withPath { path in
      try FileManager.default.createDirectory(atPath: path + folder, withIntermediateDirectories: true)
      try {
        let environment = try LMDBEnvironment.open(directory: path + folder, options: .init(mapByteCount: 1 << 20))
        let table = try environment.table("theirs", key: BytesCodec.self, value: BytesCodec.self)
        try environment.write { (transaction) throws(LMDBError) in try table.put([1], for: [2], in: transaction) }
      }()
      let before = try snapshot(path)
      for options in [quietOptions(), .existing] {
        #expect {
          _ = try ResponseStore.open(directory: path, options: options)
        } throws: {
          ($0 as? StoreError)?.code == .notAStore
        }
      }
      #expect(try snapshot(path) == before)
    }
  }
}
