import Foundation
import FoundationNetworking
import LMDBURLCache
import Synchronization

/// Concurrent readers that fetch all files of a list.
struct Readers: Sendable {
  let count: Int
  let files: [DemoFiles.File]
  /// Called once after each request.
  let step: @Sendable () -> Void

  /// The way in which a reader loads a request. The kind is determined after the time was measured.
  typealias Load = @Sendable (URLRequest) async throws -> (data: Data, kind: () throws -> DemoResponseKind)

  /// Has each reader load all files of the list: first a share of its own, then the shares of the others.
  ///
  /// The second half starts after all readers have finished the first. Each file is therefore requested from the origin
  /// once, and every reader receives responses that others fetched.
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
      let result = try await load(request)
      let duration = clock.now - start
      measurements.add(try result.kind(), duration, byteCount: result.data.count)
      // Map the file, so that its memory does not count as memory of the cache.
      if result.data != (try Data(contentsOf: URL(fileURLWithPath: file.path), options: .alwaysMapped)) {
        measurements.failures.append("The body of \(file.url) differs from \(file.path)")
      }
    } catch {
      measurements.failures.append("\(file.url) could not be loaded: \(error)")
    }
  }

  // MARK: Interfaces

  static func bySession(_ session: URLSession) -> Load {
    { request in
      let (data, response) = try await session.data(for: request)
      return (data, { byAge(response) })
    }
  }

  /// Loads through ``LMDBURLCache/data(for:)``.
  static func byCache(_ cache: LMDBURLCache) -> Load {
    { request in
      let (data, response) = try await cache.data(for: request)
      return (data, { byAge(response) })
    }
  }

  /// Loads like ``byCache(_:)``, and reports the source of the response.
  static func byLoad(_ cache: LMDBURLCache) -> Load {
    { request in
      let result = try await cache.load(request)
      return (result.data, { try kind(of: result) })
    }
  }

  /// Returns the kind of a response by its `Age`: stored responses have one, and this origin sends none.
  private static func byAge(_ response: URLResponse) -> DemoResponseKind {
    (response as? HTTPURLResponse)?.value(forHTTPHeaderField: "Age") == nil ? .miss : .hit
  }

  private static func kind(of result: LoadResult) throws -> DemoResponseKind {
    switch result.source {
    case .hit: .hit
    case .revalidated: .revalidated
    case .miss: .miss
    case .coalesced: .coalesced
    case .stale, .staleOnError, .unavailable:
      throw ToolError("The source '\(result.source.rawValue)' was not expected.")
    }
  }
}
