import Foundation
import LMDB
import Testing

@Suite("Environment")
struct EnvironmentTests {
  @Test("Opening a directory again by any path returns the same object and ignores the options")
  func sharing() throws {
    let directory = TemporaryDirectory()
    let first = try directory.open()
    let link = TemporaryDirectory()
    try FileManager.default.createSymbolicLink(atPath: link.path + "/link", withDestinationPath: directory.path)
    let name = URL(fileURLWithPath: directory.path).lastPathComponent
    let paths = [
      directory.path, directory.path + "/", directory.path + "/.", directory.path + "/../" + name, link.path + "/link",
      relativePath(to: directory.path),
    ]
    for path in paths {
      let again = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 64 << 20))
      #expect(again === first, "\(path)")
    }
    #expect(first.information.mapByteCount == 1 << 20)
  }

  /// Returns the path relative to the working directory.
  private func relativePath(to path: String) -> String {
    let depth = FileManager.default.currentDirectoryPath.split(separator: "/").count
    return String(repeating: "../", count: depth) + path.dropFirst()
  }

  @Test("Releasing the last reference closes the environment, and the next open uses its own options")
  func closing() throws {
    let directory = TemporaryDirectory()
    weak var former: LMDBEnvironment?
    do {
      let environment = try directory.open(mapByteCount: 1 << 20)
      #expect(environment.information.mapByteCount == 1 << 20)
      former = environment
    }
    #expect(former == nil)
    let environment = try directory.open(mapByteCount: 2 << 20)
    #expect(environment.information.mapByteCount == 2 << 20)
  }

  @Test("Threads that open and release one directory concurrently never have it open twice")
  func openingRace() throws {
    let directory = TemporaryDirectory()
    let findings = Findings()
    let threads = Threads()
    for _ in 0..<4 {
      threads.start {
        for _ in 0..<100 {
          findings.check { () throws(LMDBError) in
            let environment = try directory.open()
            try environment.write { transaction throws(LMDBError) in _ = transaction.id }
            let again = try directory.open()
            if again !== environment { findings.add("two objects at once") }
          }
        }
      }
    }
    threads.join()
    #expect(findings.all == [])
  }

  @Test("New files are readable by the owner only, unless the options say otherwise")
  func fileMode() throws {
    func mode(_ path: String) throws -> Int? {
      try FileManager.default.attributesOfItem(atPath: path)[.posixPermissions] as? Int
    }
    let directory = TemporaryDirectory()
    let environment = try directory.open()
    #expect(try mode(directory.dataFile) == 0o600)
    #expect(try mode(directory.path + "/lock.mdb") == 0o600)
    let shared = TemporaryDirectory()
    let sharedEnvironment = try shared.open { $0.fileMode = 0o640 }
    #expect(try mode(shared.dataFile) == 0o640)
    withExtendedLifetime((environment, sharedEnvironment)) {}
  }

  @Test("A failed open reports the reason")
  func openingFailures() throws {
    let directory = TemporaryDirectory()
    func code(_ path: String) -> LMDBError.Code? {
      error { () throws(LMDBError) in
        try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20))
      }?.code
    }
    #expect(code(directory.path + "/missing") == .noSuchFile)
    try Data("text".utf8).write(to: URL(fileURLWithPath: directory.path + "/file"))
    #expect(code(directory.path + "/file") == .init(rawValue: ENOTDIR))

    try Data(repeating: 0x41, count: 20_000).write(to: URL(fileURLWithPath: directory.dataFile))
    #expect(code(directory.path) == .invalid)
    try FileManager.default.removeItem(atPath: directory.dataFile)
    try FileManager.default.createDirectory(atPath: directory.dataFile, withIntermediateDirectories: false)
    #expect(code(directory.path) == .init(rawValue: EISDIR))
    try FileManager.default.removeItem(atPath: directory.dataFile)
    // Failed attempts do not prevent a later open.
    #expect(code(directory.path) == nil)
  }

  @Test("Opening a directory without permission fails")
  func accessDenied() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      chmod(directory.path, 0)
      // Permissions do not restrict the superuser.
      let user = geteuid()
      if user == 0 { #expect(seteuid(65_534) == 0) }
      #expect(error { () throws(LMDBError) in try directory.open() }?.code == .accessDenied)
      #expect(seteuid(user) == 0)
      chmod(directory.path, 0o700)
    }
  }
}
