import Foundation
import LMDBURLCache

/// `urlcache warm`: fetches the URLs of a list, so that they are stored.
enum WarmCommand: Command {
  static let manual = CommandHelp(
    name: "warm", summary: "Fetches the URLs of a list, sitemap or HAR file into a cache.",
    usage: ["[FILE|-] [--directory DIR] [--jobs N] [--rate N] [--header FIELD]... [--policy NAME] [OPTION]..."],
    discussion: """
      Loads each URL of FILE, or of standard input, through the cache. A response that is stored and fresh is not
      fetched again, a stale one is validated, and bodies are not kept in memory. FILE is one of

        a list     one URL in each line; empty lines and lines that begin with '#' do not count
        a sitemap  XML of at most 50 MiB, or an index, whose sitemaps are fetched through the cache first; one that
                   cannot be read is a failure, and the others are used
        HAR 1.2    JSON, such as of a browser or of 'urlcache export'. GET requests are sent with their header fields,
                   except those with credentials, cookies, conditions and ranges, and those that cannot be sent.

      Each can be a gzip file. FILE is read to its end before the first request, so an incomplete sitemap or HAR file
      changes nothing. Only the URLs and their header fields are kept in memory, at most 1,000,000. A progress bar shows
      the rate and the time left on a terminal. Ends with a summary. No cookies are sent or kept without --cookies.

      \(RequestArguments.modeText)

      If the run is interrupted, the same command with the same URLs, header fields and directory resumes where it
      stopped, for 12 hours. The position is in $XDG_STATE_HOME/urlcache, by default ~/.local/state/urlcache.

      A directory of a fleet needs --fleet with the URL of Redis, and the secret of the fleet. A new directory joins the
      fleet as another machine.
      \(FleetAccess.urlText)
      \(FleetAccess.secretText)
      \(FleetAccess.passwordText)

      \(RequestArguments.policies)
      """,
    operandName: "the file", operandCount: 0...1,
    options: [
      CacheAccess.directory,
      Option(name: "jobs", placeholder: "N", help: "The number of requests at a time; 8 by default, at most 256."),
      Option(
        name: "rate", placeholder: "N",
        help: "The maximum number of requests that begin in a second; no limit by default."
      ),
      RequestArguments.header, RequestArguments.policy, RequestArguments.rules, CacheAccess.cookies,
    ] + RequestArguments.modes + [
      Option(
        name: "allow-failures", placeholder: "N",
        help:
          "The maximum number of URLs without a response, and of sitemaps of an index that\ncannot be read, with which the run succeeds; 0 by default."
      ),
      Option(name: "restart", help: "Begins with the first URL, even if an earlier run was interrupted."),
      Option(name: "json", help: "Prints the summary as a JSON object."),
    ] + FleetAccess.machineOptions,
    success: "every URL had a response of any status, except for the failures of --allow-failures",
    failure: "more URLs had none, the run was interrupted, FILE cannot be read, or the cache cannot be used")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let fields = try RequestArguments.fields(arguments)
    let policy = try RequestArguments.policy(arguments)
    let jobCount = try arguments.number("jobs", in: 1...256, default: 8)
    let rate = try arguments.number("rate", in: 0...1_000_000, default: 0)
    let allowedFailureCount = try arguments.number("allow-failures", in: 0...WarmList.maximumRequestCount, default: 0)
    let file = arguments.operands.first ?? "-"
    let name = file == "-" ? "Standard input" : Format.visible(file)
    let list = try WarmList(WarmInput(file: file, name: name), name: name)
    let path = CacheAccess.path(arguments)
    let isResumed = !arguments.has("restart")
    let cache = try await CacheAccess.open(arguments)
    defer { cache.storage.leaveFleet() }
    let clock = ContinuousClock()
    let begin = clock.now
    let task = Task {
      var list = list
      let failedSitemapCount = try await SitemapIndex.read(into: &list, through: cache, fields: fields)
      let checkpoint = WarmCheckpoint(
        directory: ProcessArguments.identity(ofDirectory: path), requests: list.requests, fields: fields)
      let start = isResumed ? min(checkpoint.doneCount(now: Date()), list.requests.count) : 0
      if start > 0 {
        Output.error(
          "urlcache warm: Resuming after \(Format.count(start)) of \(Format.count(list.requests.count)) URLs. "
            + "--restart begins with the first.\n")
      }
      let runner = WarmRunner(
        cache: cache, requests: list.requests, fields: fields, policy: policy, jobCount: jobCount,
        rate: rate > 0 ? rate : nil, checkpoint: checkpoint)
      var (tally, isComplete) = await runner.run(from: start)
      tally.failedSitemapCount = failedSitemapCount
      return (tally, isComplete, start, list.requests.count)
    }
    let interruption = Interruption { task.cancel() }
    let (tally, isComplete, start, total): (WarmTally, Bool, Int, Int)
    do {
      (tally, isComplete, start, total) = try await task.value
    } catch is CancellationError {
      throw ToolError("Interrupted before the first URL.")
    }
    interruption.end()
    await cache.finishBackgroundWork()
    let isSafe = cache.flush()
    let seconds = (clock.now - begin) / .seconds(1)
    try Output.write(
      arguments.has("json")
        ? tally.json(
          total: total, skippedCount: list.skippedCount, resumedCount: start, seconds: seconds, isComplete: isComplete
        ).pretty
        : tally.text(total: total, skippedCount: list.skippedCount, resumedCount: start, seconds: seconds))
    if !isComplete { Output.error("urlcache warm: Interrupted. The same command resumes.\n") }
    if !isSafe { Output.error("urlcache warm: Not all responses could be written to the disk.\n") }
    return isComplete && isSafe && tally.failureCount <= allowedFailureCount ? .success : .failure
  }
}
