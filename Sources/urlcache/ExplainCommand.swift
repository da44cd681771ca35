import CacheModel
import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

/// `urlcache explain`: explains what a cache would do with a request.
enum ExplainCommand: Command {
  static let manual = CommandHelp(
    name: "explain", summary: "Explains what a cache would do with a request.",
    usage: ["DIR URL [--header FIELD]... [--policy NAME] [--shared|--private] [--method METHOD] [OPTION]..."],
    discussion: """
      Decides about a request for URL like a cache in DIR would now, without sending anything, and shows why: which
      stored variant the request selects, and each check in its order with the section of the RFC, whether its rule
      applies, and the figures that it compared. The last rule that applies decides. If nothing is stored for URL, shows
      when a response was last refused, and by which rule; for a body that was too large also the limit of a cache with
      default options. About the last 640 refusals of all processes are known.

      \(RequestArguments.modeText)
      All other options have their defaults. A program can set other options, and overrides for a request. Without
      --header, Accept-Language is "en", and User-Agent is that of this tool: give the program's own if responses vary by
      it.

      With --rules, shows which rules of the file apply and what they set, in their order, and the partition that follows
      from them. A rule for a media type is compared with the selected response. A file with an error is not used: the
      error names the rule, the key and what to write. So any DIR and URL serve to check a file.

      \(RequestContent.discussion)
      The size of the content and the digest in the cache key are shown, but not the content.

      On a machine of a fleet, shows whether the machine has a valid lease. Without one, each stored response is
      validated.

      \(RequestArguments.policies)
      """,
    operandName: "the directory or the URL", operandCount: 2...2,
    options: [
      RequestArguments.header, RequestArguments.policy, RequestArguments.method,
    ] + RequestArguments.modes + RequestContent.options + [
      RequestArguments.partition, RequestArguments.rules,
      Option(name: "json", help: "Prints a JSON object; ages are in seconds, dates in UTC."),
    ],
    success: "the request was explained, regardless of the result",
    failure: "there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let text = arguments.operands[1]
    guard let url = URL(string: text), url.isHTTPWithHost else {
      throw UsageError("'\(Format.visible(text))' is not an http or https URL with a host")
    }
    var request = URLRequest(url: url, cachePolicy: try RequestArguments.policy(arguments))
    try RequestContent(arguments).apply(to: &request)
    let rules = try RequestArguments.rules(arguments)
    let directory = try CacheAccess.openDirectory(arguments)
    let options = try RequestArguments.options(arguments, of: directory)
    let now = Date()
    let explanation = directory.explain(
      request, partition: RequestArguments.partition(arguments), options: options, rules: rules, now: now)
    guard let explanation else { throw UsageError("'\(Format.visible(text))' cannot be requested") }
    try directory.checkIsInPlace()
    let report = ExplanationReport(
      explanation: explanation, mode: options.mode, rules: rules, request: request, now: now)
    try Output.write(arguments.has("json") ? report.json(directory: directory.path).pretty : report.text)
    if directory.hasFoundCorruption {
      Output.error("urlcache explain: A stored response is corrupt and counts as missing. Run: urlcache verify DIR\n")
    }
    return .success
  }
}

/// An explanation as text and as JSON.
private struct ExplanationReport {
  let explanation: CacheDirectory.Explanation
  let mode: CachingOptions.Mode
  let rules: CachingRules
  let request: URLRequest
  let now: Date

  private var decision: RequestExplanation { explanation.decision }
  private var method: String { request.httpMethod ?? "GET" }
  private var url: String { request.url?.textWithoutUserInformation ?? "" }

  var text: String {
    var rows = [["Result", result], ["Rule", decision.rule.description]]
    if mode == .shared { rows.append(["Mode", "a shared cache"]) }
    if !rules.isEmpty { rows += ruleRows }
    if let machine = explanation.machine { rows.append(["Lease", LeaseReport(machine: machine).text]) }
    if let content = explanation.key?.queryContent {
      rows.append(["Content", QueryContentText.long(digest: content.digest, byteCount: content.byteCount)])
    }
    rows.append(["Stored", stored])
    if let refusal {
      let limit =
        refusal.rule == .bodyTooLarge ? "; the limit is \(Format.bytes(explanation.maximumBodyByteCount))" : ""
      rows.append(["Refused", "\(Format.localTime(refusal.time)), \(refusal.rule)\(limit)"])
    }
    if let selected = explanation.selected {
      let freshness = selected.freshness
      rows.append([
        "Selected",
        "status \(selected.status), stored \(Format.localTime(selected.storedAt)), "
          + "age \(Format.duration(freshness.currentAge(at: now))), "
          + "TTL \(Format.timeToLive(freshness.timeToLive(at: now)))",
      ])
    }
    for (name, value) in conditionalFields { rows.append(["Sent", "\(name): \(value)"]) }
    if let failure { rows.append(["On error", failure]) }
    let checks = decision.checks.map { check in
      [
        "  " + (check.applies ? "yes" : "no"), check.rule.id, "RFC \(check.rule.section)",
        check.figures.isEmpty ? check.rule.summary : check.figures.map(text).joined(separator: ", "),
      ]
    }
    let summary = rows.map { [$0[0], Format.visible($0[1])] }
    return Format.visible("\(method) \(url)") + "\n" + Format.table(summary, rightAligned: []) + "\nChecks\n"
      + Format.table(checks.map { $0.map(Format.visible) }, rightAligned: [])
  }

  private func text(_ figure: DecisionCheck.Figure) -> String {
    switch figure.value {
    case .seconds(let seconds) where seconds < 9.95: "\(figure.name) \(String(format: "%.1f s", seconds))"
    case .seconds(let seconds): "\(figure.name) \(Format.duration(seconds))"
    case .text(let text): "\(figure.name) \(text)"
    }
  }

  private var result: String {
    switch decision.outcome {
    case .stored(let status, let isStale, let revalidates):
      "answered from the cache with status \(status), " + (isStale ? "stale" : "fresh")
        + (revalidates ? "; validated in the background" : "; the origin is not asked")
    case .unavailable: "504 from the cache: the request forbids the network"
    case .validate: "the origin is asked whether the stored response is still valid"
    case .complete: "the origin is asked for the missing part of the stored response"
    case .fetch: "a miss, from the origin"
    case .bypass: "sent to the origin, past the cache"
    }
  }

  private var ruleRows: [[String]] {
    let matches = explanation.cachingRules.map { match in
      let effects = match.rule.effects.map { "\($0.key) \($0.value)" }.joined(separator: "; ")
      let types = match.rule.mediaTypes.joined(separator: " or ")
      let condition =
        switch match.appliesToResponse {
        case true?: ""
        case false?: "not applied, the response is not \(types): "
        case nil: "if the response is \(types): "
        }
      return "\"\(match.rule.name)\": \(condition)\(effects)"
    }
    let shown = matches.isEmpty ? ["no rule of the file applies"] : matches
    return shown.map { ["Override", $0] }
      + (explanation.partition.isEmpty ? [] : [["Partition", explanation.partition]])
  }

  private var stored: String {
    guard explanation.variantCount > 0 else {
      return (explanation.key?.queryContent == nil ? "nothing for this URL" : "nothing for this query")
        + (explanation.lastRefusal == nil ? "; no refusal to store is recorded" : "")
    }
    let names = explanation.varyNames
    return Format.count(explanation.variantCount, "variant")
      + (names.isEmpty ? "" : ", with the request fields " + names.joined(separator: ", "))
      + (explanation.selected == nil ? "; none matches the request" : "")
  }

  /// The last refusal to store a response, if none is stored that matches the request.
  private var refusal: (rule: Rule, time: Date)? {
    guard explanation.selected == nil, let refusal = explanation.lastRefusal else { return nil }
    let known = Rule.storageRefusals.first { $0.id == refusal.rule }
    return (known ?? Rule(refusal.rule, "unknown", "a rule of another version of this tool"), refusal.time)
  }

  private var conditionalFields: [(name: String, value: String)] {
    switch decision.outcome {
    case .validate(let fields, _), .complete(let fields): fields.displayed.map { ($0.name, $0.value) }
    case .stored, .unavailable, .fetch, .bypass: []
    }
  }

  private var staleOnError: StaleOnError? {
    switch decision.outcome {
    case .validate(_, let permission), .fetch(let permission): permission
    case .stored, .unavailable, .complete, .bypass: nil
    }
  }

  private var failure: String? {
    guard let permission = staleOnError, explanation.selected != nil else { return nil }
    let times = [("error", permission.untilAfterError), ("unreachable", permission.untilWhenUnreachable)]
      .compactMap { name, until in until.flatMap { $0 >= now ? "\(name): until \(Format.localTime($0))" : nil } }
    let text =
      times.isEmpty ? "the stored response is not used" : "the stored response, " + times.joined(separator: ", ")
    return "\(text) (\(permission.rule.id))"
  }

  func json(directory: String) -> JSON {
    [
      "directory": .string(directory), "method": .string(method), "url": .string(url),
      "queryContent": QueryContentText.json(explanation.key?.queryContent), "outcome": .string(outcomeName),
      "mode": .string(mode == .shared ? "shared" : "private"),
      "rule": json(decision.rule), "checks": .array(decision.checks.map(json)),
      "variantCount": .number(explanation.variantCount), "varyNames": .array(explanation.varyNames.map { .string($0) }),
      "selected": explanation.selected.map { selected in
        [
          "status": .number(selected.status), "storedAt": .date(selected.storedAt),
          "age": .seconds(selected.freshness.currentAge(at: now)),
          "timeToLive": .seconds(selected.freshness.timeToLive(at: now)),
        ]
      } ?? .null,
      "cachingRules": .array(
        explanation.cachingRules.map { match in
          [
            "name": .string(match.rule.name), "applies": match.appliesToResponse.map { .bool($0) } ?? .null,
            "sets": .object(match.rule.effects.map { ($0.key, .string($0.value)) }),
          ]
        }),
      "partition": .string(explanation.partition),
      "isLeaseValid": explanation.machine.map { .bool($0.hasLease) } ?? .null,
      "refused": refusal.map { ["rule": json($0.rule), "time": .date($0.time)] } ?? .null,
      "sent": .object(conditionalFields.map { ($0.name, .string($0.value)) }),
      "staleAfterErrorUntil": .date(staleOnError?.untilAfterError),
      "staleWhenUnreachableUntil": .date(staleOnError?.untilWhenUnreachable),
    ]
  }

  private func json(_ rule: Rule) -> JSON {
    ["id": .string(rule.id), "section": .string(rule.section), "summary": .string(rule.summary)]
  }

  private func json(_ check: DecisionCheck) -> JSON {
    [
      "rule": .string(check.rule.id), "section": .string(check.rule.section), "applies": .bool(check.applies),
      "figures": .object(
        check.figures.map { figure in
          switch figure.value {
          case .seconds(let seconds): (figure.name, .seconds(seconds))
          case .text(let text): (figure.name, .string(text))
          }
        }),
    ]
  }

  private var outcomeName: String {
    switch decision.outcome {
    case .stored(_, let isStale, _): isStale ? "stale" : "hit"
    case .unavailable: "unavailable"
    case .validate: "validate"
    case .complete: "complete"
    case .fetch: "fetch"
    case .bypass: "bypass"
    }
  }
}
