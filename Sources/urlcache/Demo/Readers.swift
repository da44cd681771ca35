import Foundation
import LMDBURLCache
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Several readers that fetch all of a list at once.
struct Readers: Sendable {
  let count: Int
  let files: [DemoFiles.File]
  /// Called once for each request that is done.
  let step: @Sendable () -> Void

  /// How a reader asks. The kind is looked at when the time has been taken.
  typealias Load = @Sendable (URLRequest) async throws -> (data: Data, kind: () throws -> Kind)

  /// Each reader loads all files of the list: first a share that is his alone, then, when all have done so, those of the
  /// others. So whatever has to be asked of the origin is asked once, and every reader meets what another one fetched.
  func readAll(_ numbers: [Int], _ load: @escaping Load) async -> Measurements {
    var all = Measurements()
    for ownShare in [true, false] {
      await withTaskGroup(of: Measurements.self) { group in
        for reader in 0..<count {
          group.addTask {
            var measurements = Measurements()
            for (index, number) in numbers.enumerated() where (index % count == reader) == ownShare {
              await read(files[number], load, &measurements)
            }
            return measurements
          }
        }
        for await measurements in group { all.add(measurements) }
      }
    }
    return all
  }

  private func read(_ file: DemoFiles.File, _ load: Load, _ measurements: inout Measurements) async {
    defer { step() }
    let clock = ContinuousClock()
    let request = URLRequest(url: file.url)
    do {
      let start = clock.now
      let answer = try await load(request)
      let duration = clock.now - start
      measurements.add(try answer.kind(), duration, byteCount: answer.data.count)
      // Mapped, so that the files themselves do not count as memory of the cache.
      if answer.data != (try Data(contentsOf: URL(fileURLWithPath: file.path), options: .alwaysMapped)) {
        measurements.troubles.append("The body of \(file.url) differs from \(file.path)")
      }
    } catch {
      measurements.troubles.append("\(file.url) could not be loaded: \(error)")
    }
  }

  // MARK: Ways to ask

  /// Through a session.
  static func bySession(_ session: URLSession) -> Load {
    { request in
      let (data, response) = try await session.data(for: request)
      return (data, { byAge(response) })
    }
  }

  /// Through ``LMDBURLCache/data(for:)``.
  static func byCache(_ cache: LMDBURLCache) -> Load {
    { request in
      let (data, response) = try await cache.data(for: request)
      return (data, { byAge(response) })
    }
  }

  /// As ``byCache(_:)``, and told where the answer came from.
  static func byLoad(_ cache: LMDBURLCache) -> Load {
    { request in
      let answer = try await cache.load(request)
      return (answer.data, { try kind(of: answer) })
    }
  }

  /// Foundation does not say where a response came from, but one that was stored has an Age, and this origin sends none.
  private static func byAge(_ response: URLResponse) -> Kind {
    (response as? HTTPURLResponse)?.value(forHTTPHeaderField: "Age") == nil ? .fetched : .hit
  }

  private static func kind(of answer: CachedAnswer) throws -> Kind {
    switch answer.source {
    case .store: .hit
    case .revalidated: .revalidated
    case .network: .fetched
    case .coalesced: .shared
    case .staleStore, .staleOnError, .unavailable:
      throw ToolError("the answer is '\(answer.source.rawValue)', which nobody asked for")
    }
  }
}
