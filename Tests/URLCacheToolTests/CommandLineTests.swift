import Foundation
import Testing

@Suite("The command line")
struct CommandLineTests {
  private static func statusReason(_ text: String) -> String {
    "--status takes a status like 404 or a class like 5xx, not '\(text)'"
  }
  private static let originReason = "--group needs --origin, and --origin needs --group or --tag"
  private static func typeReason(_ text: String) -> String {
    "--type takes a media type without parameters, such as text/html or 'image/*', not '\(text)'"
  }
  private static func pathReason(_ text: String) -> String {
    "--path takes a pattern that begins with '/' or '*', in the spelling of URLs, such as '/img/*', not '\(text)'"
  }

  @Test(
    "Invalid arguments print the reason and a pointer to the help, and exit with code 2",
    arguments: [
      (["nonsense"], "urlcache", "there is no command 'nonsense'"),
      (["help", "nonsense"], "urlcache", "there is no command 'nonsense'"),
      (["--nonsense"], "urlcache", "there is no command '--nonsense'"),
      (["a\u{1b}[2J"], "urlcache", "there is no command 'a?[2J'"),
      (["list", "--\u{9b}2J"], "urlcache list", "there is no option '--?2J'"),
      (["list"], "urlcache list", "the directory is missing"),
      (["list", "a", "b"], "urlcache list", "'b' is one argument too many"),
      (["list", "a", "--xyz"], "urlcache list", "there is no option '--xyz'"),
      (["list", "a", "-x"], "urlcache list", "there is no option '-x'"),
      (["list", "a", "--json=1"], "urlcache list", "--json takes no value"),
      (["list", "a", "--sort"], "urlcache list", "--sort needs a value, ORDER"),
      (["list", "a", "--sort", "x"], "urlcache list", "--sort takes time, url or size, not 'x'"),
      (["list", ""], "urlcache list", "the directory is empty"),
      (["purge", "", "--all"], "urlcache purge", "the directory is empty"),
      (["warm", "-", "--directory", ""], "urlcache warm", "--directory needs a value, DIR"),
      (["export", "a", "--har="], "urlcache export", "--har needs a value, FILE"),
      (["export", "a", "--har", "-", "--json"], "urlcache export", "--json cannot be combined with --har -"),
      (["log", "a", "--status", "9"], "urlcache log", "--status takes a status like 404 or a class like 5xx, not '9'"),
      (["get"], "urlcache get", "a URL is missing"),
      (["get", "http://a/", "--header", "x"], "urlcache get", "--header takes 'Name: value', not 'x'"),
      (
        ["get", "http://a/", "--header", "a: b\r\nc: d"], "urlcache get",
        "--header takes 'Name: value', not 'a: b??c: d'"
      ),
      (["get", "http://a/", "--policy", "x"], "urlcache get", "there is no policy 'x'"),
      (["get", "http://a/", "--twice", "--twice"], "urlcache get", "--twice is given twice"),
      (
        ["purge", "a"], "urlcache purge",
        "say what to purge: one of --url, --since, --host, --prefix, --tag, --group, --all, or --status, --type or --path"
      ),
      (["purge", "a", "--all", "--host", "b"], "urlcache purge", "--host cannot be combined with --all"),
      (["list", "a", "--url", "http://a/", "--host", "b"], "urlcache list", "--url cannot be combined with --host"),
      (["list", "a", "--all"], "urlcache list", "there is no option '--all'"),
      (["list", "a", "--status", "6xx"], "urlcache list", Self.statusReason("6xx")),
      (["purge", "a", "--status", "99"], "urlcache purge", Self.statusReason("99")),
      (["top", "a", "--status", ""], "urlcache top", Self.statusReason("")),
      (["list", "a", "--type", "html"], "urlcache list", Self.typeReason("html")),
      (
        ["purge", "a", "--type", "text/html; charset=utf-8"], "urlcache purge",
        Self.typeReason("text/html; charset=utf-8")
      ),
      (["list", "a", "--path", "img/*"], "urlcache list", Self.pathReason("img/*")),
      (["purge", "a", "--path", ""], "urlcache purge", Self.pathReason("")),
      (["log", "a", "--path", "^/img"], "urlcache log", Self.pathReason("^/img")),
      (["top", "a", "--outcome", "hits"], "urlcache top", "--outcome does not take 'hits'; see --help"),
      (["purge", "a", "--group", "b"], "urlcache purge", Self.originReason),
      (["purge", "a", "--host", "b", "--origin", "http://b/"], "urlcache purge", Self.originReason),
      (["purge", "a", "--tag", "b", "--group", "b"], "urlcache purge", "--tag cannot be combined with --group"),
      (["purge", "a", "--tag", ""], "urlcache purge", "--tag needs a tag"),
      (
        ["purge", "a", "--tag", "b", "--tag-field", ""], "urlcache purge",
        "--tag-field takes the name of a field, such as Cache-Tag, not ''"
      ),
      (
        ["list", "a", "--tag", "b", "--tag-field", "c d"], "urlcache list",
        "--tag-field takes the name of a field, such as Cache-Tag, not 'c d'"
      ),
      (["list", "a", "--host", "b", "--tag-field", "b"], "urlcache list", "--tag-field needs --tag"),
      (
        ["list", "a", "--tag", "b", "--origin", "c"], "urlcache list",
        "--origin takes an http or https URL with a host, not 'c'"
      ),
      (["purge", "a", "--prefix", "b"], "urlcache purge", "--prefix takes an http or https URL with a host, not 'b'"),
      (["purge", "a", "--url", "b"], "urlcache purge", "--url takes an http or https URL with a host, not 'b'"),
      (
        ["purge", "a", "--host", "http://b/"], "urlcache purge",
        "--host takes one host alone, such as api.example.com, without a scheme or a port, not 'http://b/'"
      ),
      (
        ["purge", "a", "--host", "p.example:8080"], "urlcache purge",
        "--host takes one host alone, such as api.example.com, without a scheme or a port, not 'p.example:8080'"
      ),
      (
        ["purge", "a", "--host", ".p.example"], "urlcache purge",
        "--host takes one host alone, such as api.example.com, without a scheme or a port, not '.p.example'"
      ),
      (
        ["list", "a", "--host", ""], "urlcache list",
        "--host takes one host alone, such as api.example.com, without a scheme or a port, not ''"
      ),
      (
        ["list", "a", "--host", "a,b"], "urlcache list",
        "--host takes one host alone, such as api.example.com, without a scheme or a port, not 'a,b'"
      ),
      (["demo", "--files", "3"], "urlcache demo", "--files takes a number from 10 to 20000, not '3'"),
    ])
  func wrongArguments(arguments: [String], place: String, reason: String) throws {
    let tool = try Tool()
    let result = try tool.run(arguments)
    #expect(result.status == 2)
    #expect(result.output == "")
    #expect(result.errors == "\(place): \(reason)\nTry '\(place) --help'.\n")
  }

  @Test("Without arguments the tool prints its usage on standard error and exits with code 2")
  func noArguments() throws {
    let result = try Tool().run([])
    #expect(result.status == 2)
    #expect(result.output == "")
    #expect(result.errors.hasPrefix("Usage: urlcache COMMAND [ARGUMENT...]\n"))
  }

  @Test(
    "Each command prints the same manual with --help and with the help command",
    arguments: ToolPartTests.commands)
  func manuals(command: String) throws {
    let tool = try Tool()
    let overview = try tool.run("--help")
    #expect(overview.status == 0)
    #expect(overview.output.contains("\n  \(command) "))
    let manual = try tool.run(command, "--help")
    #expect(manual.status == 0)
    #expect(manual.errors == "")
    #expect(manual.output.hasPrefix("Usage: urlcache \(command) "))
    #expect(manual.output.contains("\nExit codes:\n  0  "))
    #expect(try tool.run("help", command).output == manual.output)
    #expect(manual.output.split(separator: "\n").allSatisfy { $0.count <= 120 })
  }

  @Test("--version prints the version")
  func version() throws {
    let result = try Tool().run("--version")
    #expect(result.status == 0)
    #expect(result.output.wholeMatch(of: /urlcache \d+\.\d+\.\d+\n/) != nil)
  }

  @Test(
    "Valid times are parsed and printed in UTC",
    arguments: [
      ("2025-11-21", "2025-11-21 00:00:00"), ("2025-11-21T14:05", "2025-11-21 14:05:00"),
      ("2025-11-21 14:05:09", "2025-11-21 14:05:09"), ("2025-11-21T14:05:09.75", "2025-11-21 14:05:09"),
      ("2025-11-21T14:05Z", "2025-11-21 14:05:00"), ("2025-11-21T14:05+01:00", "2025-11-21 13:05:00"),
      ("2025-11-21T14:05:00-0330", "2025-11-21 17:35:00"), ("2025-11-21T00:30+01", "2025-11-20 23:30:00"),
      ("2024-02-29", "2024-02-29 00:00:00"),
    ])
  func validTimes(text: String, meaning: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([])
    _ = try tool.makeCache([Tool.Stored(url: "http://a.example/", delay: -1e9)])
    let result = try tool.run("purge", directory, "--since", text)
    #expect(result.errors == "")
    #expect(
      result.output == "Removed responses stored or updated after \(meaning): 0 responses (0 B). 1 response left.\n")
  }

  @Test(
    "Invalid times are usage errors",
    arguments: [
      "", "yesterday", "2025-13-01", "2025-02-30", "2025-02-29", "2025-11-21T24:00", "25:00", "14:05Z", "10", "m",
      "-5m", "1y",
      "2025-11-21T", "nan", "nanm", "0x5m",
    ])
  func invalidTimes(text: String) throws {
    let result = try Tool().run("purge", "/nowhere", "--since=\(text)")
    #expect(result.status == 2)
    #expect(result.errors.hasPrefix("urlcache purge: '\(text)' is not a valid time; use a date"))
  }

  @Test("A time in the future is a usage error", arguments: ["2999-01-01", "2999-01-01T00:00:00Z"])
  func future(text: String) throws {
    let result = try Tool().run("purge", "/nowhere", "--since", text)
    #expect(result.status == 2)
    #expect(
      result.errors
        == "urlcache purge: '\(text)' is in the future (2999-01-01 00:00:00)\nTry 'urlcache purge --help'.\n")
  }
}
