import Foundation
import LoopbackOrigin
import Synchronization

/// The files of the demonstration and their server.
final class DemoFiles: Sendable {
  /// Folders with documentation, and other folders with many files.
  static let folders = ["/usr/share/doc", "/usr/share", "/usr/include", "/opt/swift/usr/share", "/usr/lib"]
  /// 1 KB to 1 MB.
  static let byteCounts = 1_000...1_000_000
  /// The freshness lifetime in seconds of most files, and of those that should expire.
  static let longLifetime = 86_400
  static let shortLifetime = 600

  struct File: Sendable, Codable {
    let url: URL
    let path: String
  }

  let folder: String
  let origin: FileOrigin
  let clock: SteppedClock
  /// The files in a fixed order that mixes sizes.
  let files: [File]
  /// The numbers of the files that expire within an hour.
  let expiring: Set<Int>
  /// The numbers of the files that are fetched after the noted time.
  let late: Set<Int>

  private final class Lifetimes: Sendable {
    let shortLived = Mutex<Set<String>>([])
  }

  /// Selects `count` files of the folder, or of the first default folder with enough files, and starts to serve them.
  ///
  /// - Throws: `ToolError` if there are too few files.
  init(count: Int, folder given: String?) throws {
    let clock = SteppedClock()
    let lifetimes = Lifetimes()
    var found: [String] = []
    for folder in given.map({ [$0] }) ?? Self.folders {
      let origin: FileOrigin
      let paths: [String]
      do {
        origin = try FileOrigin(
          folder: folder, clock: { Int(clock.now.timeIntervalSince1970) },
          maximumAge: { path in
            lifetimes.shortLived.withLock { $0.contains(path) } ? Self.shortLifetime : Self.longLifetime
          })
        paths = try origin.files(byteCounts: Self.byteCounts)
      } catch {
        found.append("\(folder) cannot be read (\(error))")
        continue
      }
      guard paths.count >= count else {
        origin.stop()
        found.append("\(folder) has \(Format.count(paths.count))")
        continue
      }
      let chosen = Self.spread(paths, count)
      self.folder = folder
      self.origin = origin
      self.clock = clock
      files = chosen.map { File(url: origin.url(forFile: $0), path: folder + "/" + $0) }
      expiring = Set((0..<count).filter { $0 % 5 == 2 })
      late = Set((0..<count).filter { $0 % 4 == 3 })
      lifetimes.shortLived.withLock { [expiring] in $0 = Set(expiring.map { chosen[$0] }) }
      return
    }
    throw ToolError(
      "The demonstration needs \(Format.count(count)) readable files of 1 KB to 1 MB: \(found.joined(separator: ", ")). "
        + "Use a smaller --files, or select a folder with --folder.")
  }

  /// Selects files evenly from the whole folder.
  private static func spread(_ paths: [String], _ count: Int) -> [String] {
    (0..<count).map { paths[$0 * paths.count / count] }
  }
}

/// A clock that follows the system's clock and can be advanced.
final class SteppedClock: Sendable {
  private let offset = Mutex<TimeInterval>(0)

  init(offset: TimeInterval = 0) {
    self.offset.withLock { $0 = offset }
  }

  var now: Date { Date() + seconds }

  /// The time by which the clock was advanced.
  var seconds: TimeInterval { offset.withLock { $0 } }

  func advance(by seconds: TimeInterval) {
    offset.withLock { $0 += seconds }
  }
}
