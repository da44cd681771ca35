import Foundation
import FoundationNetworking
import Glibc
import HTTPCaching
import LMDBURLCache

/// `urlcache get`: fetches URLs through a cache.
enum GetCommand: Command {
  static let manual = CommandHelp(
    name: "get", summary: "Fetches URLs through the cache.",
    usage: [
      "URL... [--twice] [--directory DIR] [--header FIELD]... [--policy NAME] [--output FILE] [OPTION]...",
      "URL... --method QUERY --data TEXT [--content-type TYPE] [OPTION]...",
    ],
    discussion: """
      Fetches each URL through the cache, follows redirects, and writes the bodies to standard output, one after another.
      Prints a line per response on standard error: its status; its outcome, such as hit (from the cache alone),
      revalidated (the origin validated the stored response) or miss (from the origin); the rule for that; its age; how
      long it stays fresh, or the rule by which it is not stored; the time in microseconds; and its URL with the query,
      without user and password. After redirects, it is a hit only if each redirect was one, and the rest is that of the
      last response. An existing cache keeps its capacity; a new one gets 512 MiB. No cookies are sent or kept without
      --cookies.

      \(RequestArguments.modeText)

      \(RequestContent.discussion)
      Other methods than GET, HEAD, QUERY and POST are not sent.

      A directory of a fleet needs --fleet with the URL of Redis, and the secret of the fleet. A new directory joins the
      fleet as another machine.
      \(FleetAccess.urlText)
      \(FleetAccess.secretText)
      \(FleetAccess.passwordText)

      \(RequestArguments.policies)
      """,
    operandName: "a URL", operandCount: 1...Int.max,
    options: [
      Option(name: "twice", help: "Fetches each URL twice, to show a hit; the body is written once."),
      CacheAccess.directory, RequestArguments.header, method,
    ] + RequestContent.options + [
      RequestArguments.policy, RequestArguments.rules, CacheAccess.cookies,
    ] + RequestArguments.modes + [
      Option(
        name: "output", placeholder: "FILE",
        help:
          "Writes the bodies to a file instead. It is replaced if every URL had a\nresponse, and otherwise stays unchanged."
      ),
      Option(
        name: "json",
        help: "Prints each line on standard error as a JSON object; times are in seconds, except\nmicroseconds."),
    ] + FleetAccess.machineOptions,
    success: "every URL had a response of any status", failure: "a URL had none, or the cache cannot be used")

  private static let method = Option(
    name: RequestArguments.method.name, placeholder: "METHOD", help: "The request's method; GET by default.",
    values: ["GET", "HEAD", "QUERY", "POST"])

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let name = RequestArguments.method(arguments)
    guard method.values.contains(name) else {
      throw UsageError("--method takes GET, HEAD, QUERY or POST, not '\(Format.visible(name))'")
    }
    let template = try RequestContent(arguments)
    let policy = try RequestArguments.policy(arguments)
    let cache = try await CacheAccess.open(arguments)
    defer { cache.storage.leaveFleet() }
    let body = try OutputFile(file: arguments.value("output"))
    defer { body.discard() }
    var isComplete = true
    var mayHaveStored = false
    var outputError: (any Error)?
    do {
      for text in arguments.operands {
        guard let url = URL(string: text), url.isHTTPWithHost else {
          fail(text, "This is not an http or https URL with a host")
          isComplete = false
          continue
        }
        var request = URLRequest(url: url, cachePolicy: policy)
        template.apply(to: &request)
        for round in 0..<(arguments.has("twice") ? 2 : 1) {
          do {
            let load = try await load(request, cache, to: round == 0 ? body : nil)
            mayHaveStored = mayHaveStored || decidingSource(load.result) != .hit
            Output.error(line(load, text, asJSON: arguments.has("json")))
          } catch let error as URLError {
            // The part of a body that was cut.
            mayHaveStored = true
            fail(text, CacheAccess.sentence(for: error))
            isComplete = false
            break
          }
        }
      }
    } catch {
      outputError = error
      mayHaveStored = true
    }
    // Finish background revalidation and storing, even if the reader of the output is gone.
    await cache.finishBackgroundWork()
    // A hit leaves nothing to write, and must not fail because the disk is full.
    let isSafe = !mayHaveStored || cache.flush()
    if let outputError { throw outputError }
    if isComplete { try body.commit() }
    return isComplete && isSafe ? .success : .failure
  }

  private struct Load {
    let result: LoadResult
    let bodyByteCount: Int
    /// Without writing the output.
    let duration: Duration
  }

  private static func load(_ request: URLRequest, _ cache: LMDBURLCache, to output: OutputFile?) async throws -> Load {
    let clock = ContinuousClock()
    var start = clock.now
    var byteCount = 0
    var outputError: (any Error)?
    let result = try await cache.load(request) { body, response in
      let total = response.expectedContentLength
      var bar = ProgressBar("Fetching", sharesTerminal: output?.isStandardOutput ?? false)
      for try await chunk in body {
        let arrival = clock.now
        // The response is stored also if the reader of the output is gone.
        if outputError == nil {
          do { try output?.write(chunk) } catch { outputError = error }
        }
        start += clock.now - arrival
        byteCount += chunk.count
        bar.update(doneByteCount: byteCount, total: total > 0 ? Int(total) : nil)
      }
      bar.end()
    }
    if let outputError { throw outputError }
    return Load(result: result, bodyByteCount: byteCount, duration: clock.now - start)
  }

  private static func fail(_ url: String, _ reason: String) {
    Output.error("urlcache get: \(Format.visible(Format.withoutUser(url))): \(reason).\n")
  }

  // MARK: The line

  private static func line(_ load: Load, _ text: String, asJSON: Bool) -> String {
    let result = load.result
    let status = (result.response as? HTTPURLResponse)?.statusCode ?? 0
    let microseconds = Int(load.duration / .microseconds(1))
    let text = Format.withoutUser(text)
    let url = result.response.url?.textWithoutUserInformation ?? text
    guard !asJSON else {
      let json: JSON = [
        "url": .string(text), "finalURL": .string(url), "status": .number(status),
        "source": .string(decidingSource(result).rawValue),
        "age": .number(result.age), "timeToLive": .seconds(result.timeToLive),
        "microseconds": .number(microseconds), "bodyByteCount": .number(load.bodyByteCount),
        "reason": .string(result.reason.id), "refusal": result.storageRefusal.map { .string($0.id) } ?? .null,
        "cachingRules": .array(result.cachingRules.map { .string($0) }),
        "redirects": .array(
          result.redirects.map { redirect in
            [
              "url": .string(redirect.request.url.textWithoutUserInformation),
              "status": .number(redirect.response.status), "source": .string(redirect.source.rawValue),
            ]
          }),
      ]
      return json.compact + "\n"
    }
    let notStored = "not stored" + (result.storageRefusal.map { " (\($0.id))" } ?? "")
    let timeToLive = result.timeToLive.map { ($0 > 0 ? "TTL " : "") + Format.timeToLive($0) } ?? notStored
    return [
      String(status), decidingSource(result).rawValue.padded(to: 12), result.reason.id.padded(to: 12),
      "age \(Format.duration(Double(result.age)))".padded(to: 10),
      timeToLive.padded(to: 14), "\(Format.count(microseconds)) µs".aligned(to: 12), Format.visible(url),
    ].joined(separator: "  ") + "\n"
  }

  /// The source of the response, or of the first redirect before it that did not come from the cache alone.
  private static func decidingSource(_ result: LoadResult) -> ResponseSource {
    result.redirects.first { $0.source != .hit }?.source ?? result.source
  }
}
