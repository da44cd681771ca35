import Foundation
import LoopbackOrigin
import StoreContract

/// The origin of the series `longrun`. The first part of a path says how it replies.
enum LongRunOrigin {
  static let hostCount = 5000

  /// Returns a URL of one of the hosts, all of which are the loopback interface.
  static func url(_ path: String, host: Int, port: Int) -> URL {
    guard let url = URL(string: "http://host\(host).localhost:\(port)/\(path)") else { fail("no URL: \(path)") }
    return url
  }

  static func reply(to request: RecordedRequest) -> Reply {
    let words = request.path.split(separator: "/")
    var random = SeededRandom(UInt64(request.number))
    let body = Data(count: random.below(50) == 0 ? 200_000 : random.below(12_000))
    switch words.first {
    case "hit", "miss":
      // Some requests find the responses of others, which are stale by then or not.
      return Reply(200, [("Cache-Control", "max-age=\(random.below(2) * 3600)"), ("ETag", "\"1\"")], body: body)
    case "delayed":
      let gate = Gate()
      DispatchQueue.global().asyncAfter(deadline: .now() + .milliseconds(random.below(20))) { gate.open() }
      return Reply(200, [("Cache-Control", "max-age=60")], body: body).held(
        at: gate, afterBodyBytes: random.below(2) * body.count / 2)
    case "validation":
      let fields = [("Cache-Control", "no-cache"), ("ETag", "\"1\"")]
      return request["If-None-Match"] == nil ? Reply(200, fields, body: body) : Reply(304, fields)
    case "unstorable": return Reply(200, [("Cache-Control", "no-store")], body: body)
    case "stream": return Reply(200, [("Cache-Control", "max-age=60")], body: Data(count: 300_000)).chunked()
    default: return Reply(404)
    }
  }
}
