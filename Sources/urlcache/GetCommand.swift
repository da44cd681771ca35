import Foundation
import Glibc
import LMDBURLCache

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// `urlcache get`: fetches URLs through a cache.
enum GetCommand: Command {
  static let manual = Manual(
    name: "get", summary: "Fetches URLs through the cache.",
    usage: ["URL... [--twice] [--directory DIR] [--header FIELD]... [--policy NAME] [--output FILE] [--json]"],
    discussion: """
      Fetches each URL through the cache, follows redirects, and writes the bodies to standard output, one after another.
      For each response a line on standard error tells: its status; whether it is a hit (from the cache, nobody was asked),
      was revalidated (the origin was asked and confirmed it) or fetched; the rule behind that; its age; how long it stays
      fresh, or the rule by which it is not stored; how long it took in microseconds; and its URL, with its query. A
      cache that is there keeps its capacity, a new one gets 512 MiB.

      Policies: protocol (as HTTP has it; the default), reload (ask the origin, store the answer), reload-everywhere (and
      have caches on the way do so, too), prefer-cache (what is stored at any age, else the origin), only-cache (what is
      stored at any age, else nothing), revalidate (what is stored if the origin confirms it).
      """,
    operandName: "a URL", operandCount: 1...Int.max,
    options: [
      Option(name: "twice", help: "Fetches each URL twice, so that a hit shows; the body is written once."),
      Option(
        name: "directory", placeholder: "DIR",
        help: "The cache's directory, which is made if it is missing. By default\n\(LMDBURLCache.defaultCachePath)"),
      Option(
        name: "header", placeholder: "FIELD", help: "A header field to send, such as 'Accept: text/html'.",
        isRepeatable: true),
      Option(name: "policy", placeholder: "NAME", help: "How what is stored may be used; see above."),
      Option(
        name: "output", placeholder: "FILE",
        help:
          "Writes the bodies to a file instead. It is replaced when every URL had a\nresponse, and else stays as it is."
      ),
      Option(
        name: "json",
        help: "Makes each line on standard error a JSON object; times are in seconds but for\nmicroseconds."),
    ],
    success: "every URL had a response, whatever its status", failure: "one had none, or the cache cannot be used")

  static let newCapacityByteCount = 512 << 20
  private static let memoryByteCount = 16 << 20

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let fields = try arguments.all("header").map(field)
    let policy = try policy(arguments.value("policy") ?? "protocol")
    let cache = try open(arguments.value("directory") ?? LMDBURLCache.defaultCachePath)
    let body = try BodyOutput(file: arguments.value("output"))
    defer { body.discard() }
    var isComplete = true
    var end: (any Error)?
    do {
      for text in arguments.operands {
        guard let url = URL(string: text), url.isWeb else {
          fail(text, "This is no http or https URL with a host")
          isComplete = false
          continue
        }
        var request = URLRequest(url: url)
        request.cachePolicy = policy
        for (name, value) in fields { request.addValue(value, forHTTPHeaderField: name) }
        for round in 0..<(arguments.has("twice") ? 2 : 1) {
          do {
            let (answer, duration) = try await load(request, cache)
            if round == 0 { try body.write(answer.data) }
            Output.error(line(answer, text, duration, asJSON: arguments.has("json")))
          } catch let error as URLError {
            fail(text, sentence(for: error))
            isComplete = false
            break
          }
        }
      }
    } catch {
      end = error
    }
    // Also when the reader went away: what was fetched is kept, and what is being checked behind a stale answer.
    await cache.finishBackgroundWork()
    let isSafe = cache.flush()
    if let end { throw end }
    if isComplete { try body.commit() }
    return isComplete && isSafe ? .success : .failure
  }

  /// With the capacity that the directory has, which opening would otherwise change for all who use it.
  private static func open(_ path: String) throws -> LMDBURLCache {
    let url = URL(fileURLWithPath: path)
    var capacity = newCapacityByteCount
    do {
      capacity = try CacheDirectory(existingAt: url).capacityByteCount
    } catch {
      // None there, or none that can be used: opening it says which, and begins anew where it may.
    }
    let cache = try LMDBURLCache(directory: url, memoryCapacity: memoryByteCount, diskCapacity: capacity)
    // Memory does not outlive this process, so what could not go to disk would never be a hit.
    cache.minCacheInterval = 0
    return cache
  }

  private static func load(_ request: URLRequest, _ cache: LMDBURLCache) async throws -> (CachedAnswer, Duration) {
    let clock = ContinuousClock()
    let start = clock.now
    let answer = try await cache.load(request)
    return (answer, clock.now - start)
  }

  private static func fail(_ url: String, _ reason: String) {
    Output.error("urlcache get: \(Format.visible(url)): \(reason).\n")
  }

  // MARK: The line

  private static func line(_ answer: CachedAnswer, _ text: String, _ duration: Duration, asJSON: Bool) -> String {
    let status = (answer.response as? HTTPURLResponse)?.statusCode ?? 0
    let microseconds = Int(duration / .microseconds(1))
    let url = answer.response.url?.absoluteString ?? text
    guard !asJSON else {
      let json: JSON = [
        "url": .string(text), "finalURL": .string(url), "status": .number(status), "source": .string(word(answer)),
        "age": .number(answer.age), "timeLeft": answer.timeLeft.map { .seconds($0) } ?? .null,
        "microseconds": .number(microseconds), "bodyByteCount": .number(answer.data.count),
        "reason": .string(answer.reason.id), "refusal": answer.refusal.map { .string($0.id) } ?? .null,
      ]
      return json.compact + "\n"
    }
    let notStored = "not stored" + (answer.refusal.map { " (\($0.id))" } ?? "")
    let left = answer.timeLeft.map { Format.timeLeft($0) + ($0 > 0 ? " left" : "") } ?? notStored
    return [
      String(status), word(answer).padded(to: 11), answer.reason.id.padded(to: 12),
      "age \(Format.duration(Double(answer.age)))".padded(to: 10),
      left.padded(to: 14), "\(Format.count(microseconds)) µs".aligned(to: 12), Format.visible(url),
    ].joined(separator: "  ") + "\n"
  }

  private static func word(_ answer: CachedAnswer) -> String {
    switch answer.source {
    case .store: "hit"
    case .staleStore, .staleOnError: "stale"
    case .revalidated: "revalidated"
    case .network: "fetched"
    case .coalesced: "shared"
    case .unavailable: "unavailable"
    }
  }

  // MARK: Arguments

  private static func field(_ text: String) throws -> (name: String, value: String) {
    let parts = text.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
    let name = String(parts[0])
    let isName =
      !name.isEmpty && name.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && !"\"(),/;<=>?@[\\]{}".utf8.contains($0) }
    let hasControl = text.unicodeScalars.contains { $0.value < 0x20 && $0 != "\t" || $0.value == 0x7f }
    guard parts.count == 2, isName, !hasControl else {
      throw UsageError("--header takes 'Name: value', which '\(Format.visible(text))' is not")
    }
    return (name, parts[1].trimmingCharacters(in: .whitespaces))
  }

  private static func policy(_ name: String) throws -> URLRequest.CachePolicy {
    switch name {
    case "protocol": .useProtocolCachePolicy
    case "reload": .reloadIgnoringLocalCacheData
    case "reload-everywhere": .reloadIgnoringLocalAndRemoteCacheData
    case "prefer-cache": .returnCacheDataElseLoad
    case "only-cache": .returnCacheDataDontLoad
    case "revalidate": .reloadRevalidatingCacheData
    default: throw UsageError("there is no policy '\(name)'")
    }
  }

  // MARK: Errors

  /// Foundation's own words on Linux are mostly "the operation could not be completed".
  private static func sentence(for error: URLError) -> String {
    let detail = (error.errorUserInfo[NSLocalizedDescriptionKey] as? String).map { " (\($0))" } ?? ""
    let sentence =
      switch error.code {
      case .cannotFindHost, .dnsLookupFailed: "The host was not found"
      case .cannotConnectToHost: "The host does not accept the connection"
      case .notConnectedToInternet: "There is no network"
      case .networkConnectionLost: "The connection was lost"
      case .timedOut: "The host did not answer in time"
      case .badServerResponse, .cannotParseResponse: "The answer is no HTTP response"
      case .httpTooManyRedirects: "There are too many redirects"
      case .secureConnectionFailed: "No secure connection could be made"
      case .serverCertificateUntrusted, .serverCertificateHasBadDate, .serverCertificateNotYetValid,
        .serverCertificateHasUnknownRoot:
        "The host's certificate cannot be trusted"
      case .resourceUnavailable: "Nothing is stored for it, and the policy is only-cache"
      case .badURL, .unsupportedURL: "The URL cannot be used"
      default: detail.isEmpty ? "Loading failed with error \(error.code.rawValue)" : "Loading failed"
      }
    return error.code == .resourceUnavailable ? sentence : sentence + detail
  }
}
