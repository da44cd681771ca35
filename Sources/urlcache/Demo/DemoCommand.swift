import Foundation
import LMDBURLCache

/// `urlcache demo`: demonstrates the cache with files of this machine.
enum DemoCommand: Command {
  static let manual = CommandHelp(
    name: "demo", summary: "Demonstrates the cache with files of this machine.",
    usage: ["[--files N] [--readers N] [--folder FOLDER] [--json]", "--fleet"],
    discussion: """
      Starts an HTTP server on loopback that serves files of 1 KB to 1 MB of this machine's documentation, with ETag,
      Last-Modified and Cache-Control. Several concurrent readers then fetch all files through the cache:

        twice through URLSession, a quarter of the files only after a noted time;
        twice through data(for:), which returns hits on the calling thread;
        once more through URLSession, after a purge of all responses stored or updated since the noted time;
        and again an hour later, when a fifth of the files has expired and is revalidated. The demo does not wait: it
          advances the clocks of cache and server.

      Then some searches are sent with QUERY (RFC 10008) to another server, several times each: all have the same URL,
      and their content is part of the cache key.

      Then the servers are stopped, and a second process reads all files from the same directory. Every body is compared
      with its file. The demo shows progress on standard error, then a table and a summary. The cache is in a temporary
      directory, which is removed at the end, also on Ctrl-C.

      With --fleet, starts a redis-server and three processes with caches of their own instead. Shows that they share
      responses and fetches, and that a purge holds on all of them, also on one that is suspended meanwhile.
      """,
    options: [
      Option(name: "files", placeholder: "N", help: "The number of files to serve; 400 by default."),
      Option(name: "readers", placeholder: "N", help: "The number of concurrent readers; 4 by default."),
      Option(
        name: "folder", placeholder: "FOLDER",
        help:
          "The folder with the files. By default the first one with enough files of\n\(DemoFiles.folders.joined(separator: ", "))."
      ),
      Option(name: "fleet", help: "Demonstrates a fleet of three machines instead. Needs redis-server."),
      Option(name: "json", help: "Prints a JSON object; sizes are in bytes, times in microseconds."),
    ],
    success: "all bodies were correct",
    failure: "a body differed from its file, a request failed, or the demo could not run")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let fileCount = try arguments.number("files", in: 10...20_000, default: 400)
    let readerCount = try arguments.number("readers", in: 1...64, default: 4)
    let directory = try TemporaryDirectory()
    defer { directory.remove() }
    if arguments.has("fleet") {
      for name in ["files", "readers", "folder", "json"] where arguments.has(name) {
        throw UsageError("--\(name) cannot be combined with --fleet")
      }
      let failures = try FleetDemo(directory).run()
      for failure in failures { Output.error("urlcache demo: \(failure)\n") }
      return failures.isEmpty ? .success : .failure
    }
    let progress = DemoProgress()
    progress.say("Looking for files to serve")
    let files = try DemoFiles(count: fileCount, folder: arguments.value("folder"))
    defer { files.origin.stop() }
    let demo = try Demo(files: files, readerCount: readerCount, directory: directory, progress: progress)
    let report = try await demo.run()
    try Output.write(arguments.has("json") ? report.json.pretty : report.text)
    for failure in report.failures.prefix(10) { Output.error("urlcache demo: \(failure)\n") }
    return report.failures.isEmpty ? .success : .failure
  }
}
