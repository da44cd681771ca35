import Foundation

/// A trace of requests: lines of `time,key,size` after a header line, integers only.
struct Trace {
  struct Request {
    var key: UInt64
    var byteCount: Int
  }

  var name: String
  var requests: [Request] = []
  /// The sum of the sizes of all distinct objects.
  var footprint = 0

  init(path: String) throws {
    name = URL(fileURLWithPath: path).lastPathComponent
    let data = try Self.read(path)
    var seen: Set<UInt64> = []
    for (number, line) in data.split(separator: UInt8(ascii: "\n")).enumerated() where number > 0 {
      let fields = line.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false)
      guard fields.count == 3, let key = UInt64(String(decoding: fields[1], as: UTF8.self)),
        let byteCount = Int(String(decoding: fields[2], as: UTF8.self)), byteCount >= 0
      else { throw ReplayError("line \(number + 1) of \(path) is not time,key,size") }
      requests.append(Request(key: key, byteCount: byteCount))
      if seen.insert(key).inserted { footprint += byteCount }
    }
    if requests.isEmpty { throw ReplayError("\(path) has no request") }
  }

  /// Returns the bytes of a file, decompressed by `gzip` if its name ends in `.gz`.
  private static func read(_ path: String) throws -> Data {
    guard path.hasSuffix(".gz") else { return try Data(contentsOf: URL(fileURLWithPath: path)) }
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
    process.arguments = ["gzip", "-dc", path]
    let pipe = Pipe()
    process.standardOutput = pipe
    try process.run()
    let data = pipe.fileHandleForReading.readDataToEndOfFile()
    process.waitUntilExit()
    guard process.terminationStatus == 0 else { throw ReplayError("gzip could not read \(path)") }
    return data
  }
}

struct ReplayError: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}
