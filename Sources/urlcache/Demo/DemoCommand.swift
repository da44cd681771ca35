import Foundation
import LMDBURLCache

/// `urlcache demo`: shows on files of this machine what the cache does.
enum DemoCommand: Command {
  static let manual = Manual(
    name: "demo", summary: "Shows what the cache does, on files of this machine.",
    usage: ["[--files N] [--readers N] [--folder FOLDER] [--json]"],
    discussion: """
      Starts an HTTP server on loopback that serves files of 1 KB to 1 MB of this machine's documentation, with ETag,
      Last-Modified and Cache-Control. Several readers at once then fetch all of them through the cache:

        twice through URLSession, a quarter of the files only after a moment that is noted;
        twice through data(for:), which answers hits on the caller's own thread;
        once more an hour later, when a fifth of the files has expired and is revalidated. The hour is not waited for:
          the clocks of cache and server are both put forward;
        and again through URLSession, after everything that was stored since the noted moment has been purged.

      Then the server is stopped, and a second process reads them all from the same directory. Every body is compared with
      its file. Shows progress on standard error, then one table and what was seen in a sentence. The cache lies in a
      temporary directory, which is removed at the end, also on Ctrl-C.
      """,
    options: [
      Option(name: "files", placeholder: "N", help: "How many files to serve; 400 by default."),
      Option(name: "readers", placeholder: "N", help: "How many readers there are at once; 4 by default."),
      Option(
        name: "folder", placeholder: "FOLDER",
        help:
          "Where the files are taken from. By default the first that has enough of\n\(DemoFiles.folders.joined(separator: ", "))."
      ),
      Option(name: "json", help: "Prints a JSON object; sizes are in bytes, times in microseconds."),
    ],
    success: "all bodies were right",
    failure: "a body differed from its file, a request failed, or the demo could not run")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let fileCount = try arguments.number("files", in: 10...20_000, default: 400)
    let readerCount = try arguments.number("readers", in: 1...64, default: 4)
    let directory = try TemporaryDirectory()
    defer { directory.remove() }
    let progress = Progress()
    progress.say("Looking for files to serve")
    let files = try DemoFiles(count: fileCount, folder: arguments.value("folder"))
    defer { files.origin.stop() }
    let demo = try Demo(files: files, readerCount: readerCount, directory: directory, progress: progress)
    let report = try await demo.run()
    try Output.write(arguments.has("json") ? report.json.pretty : report.text)
    for trouble in report.troubles.prefix(10) { Output.error("urlcache demo: \(trouble)\n") }
    return report.troubles.isEmpty ? .success : .failure
  }
}
