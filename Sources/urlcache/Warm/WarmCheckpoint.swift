import Foundation
import Glibc

/// The position of a run, in a file from which the same command resumes.
struct WarmCheckpoint {
  /// A run that stopped longer ago is not resumed, because its first responses may be outdated.
  static let maximumAge: TimeInterval = 12 * 3600

  private struct Content: Codable {
    var doneCount: Int
    var savedAt: Date
  }

  private let file: URL

  /// Creates a checkpoint for a directory and the requests of an input.
  ///
  /// - Parameter fields: Header fields for each request. Other fields can select other responses.
  init(directory: String, requests: [WarmRequest], fields: [(name: String, value: String)]) {
    let environment = ProcessInfo.processInfo.environment
    let state =
      environment["XDG_STATE_HOME"].flatMap { $0.hasPrefix("/") ? URL(fileURLWithPath: $0) : nil }
      ?? FileManager.default.homeDirectoryForCurrentUser.appendingPathComponent(".local/state")
    // FNV-1a. The name distinguishes inputs, and nothing depends on its secrecy.
    var hash: UInt64 = 0xcbf2_9ce4_8422_2325
    func add(_ bytes: some Sequence<UInt8>) { for byte in bytes { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 } }
    func add(_ fields: [(name: String, value: String)]) {
      for (name, value) in fields {
        add([1])
        add(name.lowercased().utf8)
        add([2])
        add(value.utf8)
      }
    }
    add(URL(fileURLWithPath: directory).standardizedFileURL.path.utf8)
    add(fields)
    for request in requests {
      add([0])
      add(request.url.utf8)
      add(request.fields)
    }
    file = state.appendingPathComponent("urlcache/warm-\(String(hash, radix: 16)).json")
  }

  /// Returns the number of requests that an earlier run has completed; 0 if there is none to resume.
  func doneCount(now: Date) -> Int {
    guard let data = FileManager.default.contents(atPath: file.path) else { return 0 }
    do {
      let content = try JSONDecoder().decode(Content.self, from: data)
      let age = now.timeIntervalSince(content.savedAt)
      return (0...Self.maximumAge).contains(age) ? max(content.doneCount, 0) : 0
    } catch {
      // The file is truncated or of another version: begin with the first request.
      return 0
    }
  }

  /// Saves the number of completed requests. A failure is ignored: the next run then begins earlier.
  func save(doneCount: Int, now: Date) {
    do {
      try FileManager.default.createDirectory(
        at: file.deletingLastPathComponent(), withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
      try JSONEncoder().encode(Content(doneCount: doneCount, savedAt: now)).write(to: file, options: .atomic)
    } catch {
      return
    }
  }

  /// Removes the file after a complete run.
  func remove() {
    unlink(file.path)
  }
}
