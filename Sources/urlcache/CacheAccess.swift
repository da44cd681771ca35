import Foundation
import FoundationNetworking
import LMDBURLCache
import ResponseStore

/// The cache of a command that loads URLs, and the errors of its loads.
enum CacheAccess {
  /// The disk capacity of a new cache.
  static let newCapacityByteCount = 512 << 20
  private static let memoryByteCount = 16 << 20

  static let directory = Option(
    name: "directory", placeholder: "DIR",
    help: "The cache's directory, which is created if necessary. By default\n\(LMDBURLCache.defaultCachePath)")

  static let cookies = Option(
    name: "cookies",
    help: "Keeps the cookies that responses set, in memory, and sends them with later requests\nof this run.")

  /// Returns the value of ``directory``.
  static func path(_ arguments: Arguments) -> String {
    arguments.value(directory.name) ?? LMDBURLCache.defaultCachePath
  }

  /// Opens the directory in the first operand, to inspect it.
  static func openDirectory(_ arguments: Arguments) throws -> CacheDirectory {
    try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
  }

  /// Opens a cache with the present capacity of the directory, which another one would change for all processes, and
  /// with the mode of its programs, which would otherwise validate what this process stores.
  ///
  /// A directory of a fleet needs the fleet. A cache without a fleet does not join one, because programs without the
  /// fleet could then no longer open it.
  static func open(_ arguments: Arguments) async throws -> LMDBURLCache {
    let rules = try RequestArguments.rules(arguments)
    let path = path(arguments)
    let url = URL(fileURLWithPath: path)
    let tier = try FleetAccess.tier(arguments)
    let isInFleet = FleetMachineState.isInFleet(directory: path)
    guard tier != nil || !isInFleet else {
      throw ToolError(
        "The cache in \(path) belongs to a fleet. Give the URL of its Redis with --fleet, and its secret with "
          + "--secret-file")
    }
    var capacity = newCapacityByteCount
    var mode = try RequestArguments.mode(arguments, recorded: nil)
    do {
      let directory = try CacheDirectory(existingAt: url, beforeOpeningCache: ())
      capacity = directory.capacityByteCount
      mode = try RequestArguments.mode(arguments, recorded: directory.recordedMode)
      guard tier == nil || isInFleet else {
        throw ToolError("The cache in \(path) belongs to no fleet. Without --fleet it can be used as it is")
      }
    } catch let error as StoreError where [.notFound, .corrupt, .unsupportedFormat].contains(error.code) {
      // There is no usable cache in the directory. Opening it below creates it, or reports the reason. After another
      // error, the cache may be usable, and must keep a capacity that is not known.
    }
    var options = LMDBURLCache.Options()
    options.caching.mode = mode
    options.recordsMode = false
    // The process has a cookie file in the user's data folder, which all runs of the tool would share.
    options.usesProcessCookies = false
    options.keepsCookiesInMemory = arguments.has(cookies.name)
    options.fleet = tier
    options.rules = rules
    let cache = try LMDBURLCache(
      directory: url, memoryCapacity: memoryByteCount, diskCapacity: capacity, options: options)
    // The memory tier ends with this process, so store all responses on disk.
    cache.minCacheInterval = 0
    if tier != nil { await waitForLease(of: cache) }
    return cache
  }

  /// Waits for some seconds for the lease that a machine has after its first exchange with Redis.
  ///
  /// Without it, responses would be validated that are fresh.
  private static func waitForLease(of cache: LMDBURLCache) async {
    let deadline = ContinuousClock.now + .seconds(5)
    while cache.statistics.directory?.fleet.isLeaseValid != true {
      guard ContinuousClock.now < deadline else {
        return Output.error(
          "urlcache: This machine has no lease in its fleet yet, so stored responses are validated.\n")
      }
      // Only a cancelled task does not wait, and this task is not cancelled.
      try? await Task.sleep(for: .milliseconds(5))
    }
  }

  /// Returns a sentence for an error, because Foundation's descriptions on Linux are mostly unspecific.
  static func sentence(for error: URLError) -> String {
    let detail = (error.errorUserInfo[NSLocalizedDescriptionKey] as? String).map { " (\($0))" } ?? ""
    let sentence =
      switch error.code {
      case .cannotFindHost, .dnsLookupFailed: "The host was not found"
      case .cannotConnectToHost: "The host does not accept the connection"
      case .notConnectedToInternet: "There is no network"
      case .networkConnectionLost: "The connection was lost"
      case .timedOut: "The host did not respond in time"
      case .badServerResponse, .cannotParseResponse: "The response is not valid HTTP"
      case .httpTooManyRedirects: "There are too many redirects"
      case .secureConnectionFailed: "No secure connection could be made"
      case .serverCertificateUntrusted, .serverCertificateHasBadDate, .serverCertificateNotYetValid,
        .serverCertificateHasUnknownRoot:
        "The host's certificate cannot be trusted"
      case .resourceUnavailable: "No response is stored, and the policy is only-cache"
      case .badURL, .unsupportedURL: "The URL cannot be used"
      default: detail.isEmpty ? "Loading failed with error \(error.code.rawValue)" : "Loading failed"
      }
    return error.code == .resourceUnavailable ? sentence : sentence + detail
  }
}

extension CacheDirectory {
  /// Throws a `ToolError` if what was read since the opening may be incomplete.
  ///
  /// A store that fails reads as an empty one. Call this before the end of an output, so that it does not look
  /// complete.
  func checkIsInPlace() throws {
    guard isInPlace else {
      throw ToolError("The cache in \(Format.visible(path)) was deleted, moved or replaced, or has failed.")
    }
  }
}
