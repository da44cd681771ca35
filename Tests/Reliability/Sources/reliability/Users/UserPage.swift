import Foundation

/// The body of a response, with its user and path, and with filler bytes that readers can check.
struct UserPage: Equatable, Sendable {
  var user: String
  var path: String
  var serial: Int
  var size: Int

  var body: Data {
    var data = Data("\(user) \(path) \(serial) \(size)\n".utf8)
    data.append(contentsOf: filler)
    return data
  }

  private var filler: [UInt8] { (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ serial &* 7 &+ $0 >> 8) } }

  init(user: String, path: String, serial: Int, size: Int) {
    self.user = user
    self.path = path
    self.serial = serial
    self.size = size
  }

  /// Parses a body; returns nil if it is malformed, truncated or corrupt.
  init?(body: Data) {
    guard let end = body.firstIndex(of: UInt8(ascii: "\n")) else { return nil }
    let words = String(decoding: body[..<end], as: UTF8.self).split(separator: " ").map(String.init)
    guard words.count == 4, let serial = Int(words[2]), let size = Int(words[3]), size >= 0,
      size == body.count - (end - body.startIndex) - 1
    else { return nil }
    self.init(user: words[0], path: words[1], serial: serial, size: size)
    guard body[(end + 1)...].elementsEqual(filler) else { return nil }
  }
}
