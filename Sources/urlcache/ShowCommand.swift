import Foundation
import HTTPCaching
import LMDBURLCache

/// `urlcache show`: shows the stored responses of a URL.
enum ShowCommand: Command {
  static let manual = CommandHelp(
    name: "show", summary: "Shows the stored responses of a URL.",
    usage: ["DIR URL [--header FIELD]... [--method METHOD] [--partition NAME] [--shared|--private] [OPTION]..."],
    discussion: """
      Shows all variants that the cache in DIR stores for URL: status, age and freshness, validators, the request fields
      in the Vary key, tags, sizes, which bytes a part has, the record on disk with its checksums, and all header
      fields. The cache has only a digest of most request fields. '*' marks the variant that a request with the given
      header fields would select. Without --header, Accept-Language is "en", and User-Agent is that of this tool. Each
      body is read once, to compare its checksum. Responses that a process has stored but not yet committed are not
      shown.

      With --method QUERY or POST, shows the variants of the query with the content in --data or --data-file and the media
      type in --content-type, \(RequestContent.defaultType) by default. 'urlcache list --url URL'
      lists all queries of a URL, also those that a caching rule compares in a normal form, which are not found here.

      \(RequestArguments.modeText)

      Other processes can use the cache at the same time. Nothing is changed, and no cache is created.
      """,
    operandName: "the directory or the URL", operandCount: 2...2,
    options: [
      RequestArguments.header, RequestArguments.method,
    ] + RequestContent.options + [RequestArguments.partition, ResponseSelection.tagField] + RequestArguments.modes + [
      Option(name: "json", help: "Prints a JSON object; sizes are in bytes, ages in seconds, dates in UTC.")
    ],
    success: "a response is stored for the URL",
    failure: "none is stored, there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheAccess.openDirectory(arguments)
    let variants = try RequestArguments.variants(arguments, in: directory)
    try directory.checkIsInPlace()
    let now = Date()
    let tagFieldNames = try ResponseSelection.tagFieldNames(arguments)
    let details = variants.map { VariantDetails(variant: $0, tagFieldNames: tagFieldNames, now: now) }
    if arguments.has("json") {
      let json: JSON = [
        "directory": .string(directory.path), "url": .string(arguments.operands[1]),
        "variants": .array(details.map(\.json)),
      ]
      try Output.write(json.pretty)
    } else if !details.isEmpty {
      var text = Format.visible(arguments.operands[1]) + "\n" + Format.count(details.count, "variant") + "\n"
      for (index, variant) in details.enumerated() {
        text += "\nVariant \(index + 1)\(variant.isSelected ? " *" : "")\n" + variant.text
      }
      try Output.write(text)
    }
    if directory.hasFoundCorruption {
      Output.error("urlcache show: A stored response is corrupt, and is not shown. Run: urlcache verify DIR\n")
      return .failure
    }
    if details.isEmpty { Output.error("urlcache show: No response is stored for this URL.\n") }
    return details.isEmpty ? .failure : .success
  }
}

/// A variant as text and as JSON.
private struct VariantDetails {
  let variant: CacheDirectory.Variant
  let tagFieldNames: [String]
  let now: Date

  var isSelected: Bool { variant.isSelected }

  /// The text in place of a value of which the cache has only a digest.
  private static let digest = "(digest)"

  private var freshness: FreshnessInfo { variant.response.freshness }

  var text: String {
    let response = variant.response
    let record = response.recordDetails
    let place = record.isBodyInline ? "in the record" : "in chunks"
    var rows = [
      ["Status", response.status == 0 ? "not HTTP" : String(response.status)],
      ["Stored", Format.localTime(response.storedAt)],
      ["Updated", response.updatedAt == response.storedAt ? "-" : Format.localTime(response.updatedAt)],
      ["Received", Format.localTime(freshness.responseTime)],
      ["Age", Format.duration(freshness.currentAge(at: now))],
      ["Lifetime", Format.duration(freshness.lifetime) + (freshness.flags.contains(.heuristic) ? " (heuristic)" : "")],
      ["Left", Format.timeToLive(freshness.timeToLive(at: now))],
    ]
    if let content = variant.queryContent {
      rows.insert(["Content", QueryContentText.long(digest: content.digest, byteCount: content.byteCount)], at: 0)
    }
    let windows = windows.map { "\($0.name) \(Format.duration($0.seconds))" }
    if !windows.isEmpty { rows.append(["If stale", windows.joined(separator: ", ")]) }
    if !flagNames.isEmpty { rows.append(["Flags", flagNames.joined(separator: ", ")]) }
    for (name, value) in validators { rows.append([name, Format.visible(value)]) }
    let vary = response.vary.ofRequest.fields.map { "\($0.name): \($0.isSecret ? Self.digest : $0.value ?? "(none)")" }
    rows.append(["Vary key", vary.isEmpty ? "-" : Format.visible(vary.joined(separator: "; "))])
    if !tags.isEmpty { rows.append(["Tags", Format.visible(tags.joined(separator: ", "))]) }
    rows.append(["Body", "\(Format.bytes(response.bodyByteCount)), \(place)"])
    if let part { rows.append(["Part", part]) }
    rows.append(["Header", Format.bytes(record.headerByteCount)])
    if let count = record.attachmentByteCount { rows.append(["Attachment", Format.bytes(count)]) }
    rows.append(["Row", "\(record.rowID), after removal \(record.removalSequence)"])
    rows.append([
      "Checksums",
      "header \(Format.hexadecimal(record.headerChecksum)), body \(Format.hexadecimal(record.bodyChecksum))",
    ])
    let table = Format.table(rows.map { ["  " + $0[0], $0[1]] }, rightAligned: [])
    let fields = response.fields.displayed.map { "    " + Format.visible("\($0.name): \($0.value)") + "\n" }.joined()
    return table + "  Fields\n" + fields
  }

  var json: JSON {
    let response = variant.response
    let record = response.recordDetails
    return [
      "isSelected": .bool(isSelected),
      "queryContent": QueryContentText.json(variant.queryContent),
      "status": .number(response.status),
      "storedAt": .date(response.storedAt),
      "updatedAt": .date(response.updatedAt),
      "receivedAt": .date(freshness.responseTime),
      "age": .seconds(freshness.currentAge(at: now)),
      "lifetime": .seconds(freshness.lifetime),
      "timeToLive": .seconds(freshness.timeToLive(at: now)),
      "staleWindows": .object(windows.map { ($0.name, .seconds($0.seconds)) }),
      "flags": .array(flagNames.map { .string($0) }),
      "validators": .object(validators.map { ($0.name, .string($0.value)) }),
      "vary": .object(
        response.vary.ofRequest.fields.map {
          ($0.name, $0.isSecret ? .string(Self.digest) : $0.value.map { .string($0) } ?? .null)
        }
      ),
      "tags": .array(tags.map { .string($0) }),
      "bodyByteCount": .number(response.bodyByteCount),
      "isBodyInRecord": .bool(record.isBodyInline),
      "part": part.map { .string($0) } ?? .null,
      "headerByteCount": .number(record.headerByteCount),
      "attachmentByteCount": .number(record.attachmentByteCount),
      "row": .number(record.rowID),
      "removalSequence": .number(record.removalSequence),
      "headerChecksum": .string(Format.hexadecimal(record.headerChecksum)),
      "bodyChecksum": .string(Format.hexadecimal(record.bodyChecksum)),
      "fields": .array(response.fields.displayed.map { ["name": .string($0.name), "value": .string($0.value)] }),
    ]
  }

  private var tags: [String] {
    ResponseTags.tags(of: variant.response.fields, in: tagFieldNames).map { FieldText.displayed($0) }
  }

  private var windows: [(name: String, seconds: Double)] {
    [("stale-while-revalidate", freshness.staleWhileRevalidate), ("stale-if-error", freshness.staleIfError)]
      .filter { $0.1 >= 0 }
  }

  /// Which bytes of the complete body are stored; nil if all are.
  private var part: String? {
    guard freshness.flags.contains(.incomplete) else { return nil }
    return variant.response.fields.first("Content-Range").map { Format.visible(FieldText.displayed($0)) } ?? "unknown"
  }

  private var validators: [(name: String, value: String)] {
    ["ETag", "Last-Modified"].compactMap { name in
      variant.response.fields.first(name).map { (name, FieldText.displayed($0)) }
    }
  }

  private var flagNames: [String] {
    let names: [(FreshnessInfo.Flags, String)] = [
      (.noCache, "no-cache"), (.mustRevalidate, "must-revalidate"), (.proxyRevalidate, "proxy-revalidate"),
      (.immutable, "immutable"), (.noTransform, "no-transform"), (.incomplete, "incomplete"),
      (.sharedMode, "stored by a shared cache"), (.authorized, "request with credentials"), (.stale, "outdated"),
      (.softPurged, "soft-purged"), (.suspect, "suspect"),
      (.dateAssumed, "no Date field"), (.hasGroups, "cache groups"), (.decoded, "content decoded"),
    ]
    return names.filter { freshness.flags.contains($0.0) }.map(\.1)
  }
}
