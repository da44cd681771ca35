import Foundation
import HTTPCaching
import Origin

/// A request as the proxy forwards it.
struct ForwardedMessage: Sendable {
  var head: RequestHead
  var body: Data

  /// Takes everything from a request except what belongs to its connection.
  init(_ request: RecordedRequest, origin: URL) {
    let fields = endToEnd(request.fields.map { ($0.name, $0.value) }, dropping: ["host", "content-length", "expect"])
    let url = URL(string: request.target, relativeTo: origin)?.absoluteURL ?? origin
    head = RequestHead(method: request.method, url: url, fields: HeaderFields(fields))
    body = request.body
  }
}

/// Returns the fields that do not belong to a connection (RFC 9110, section 7.6.1).
func endToEnd(_ fields: [(String, String)], dropping others: Set<String> = []) -> [(String, String)] {
  var dropped: Set<String> = [
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
  ]
  dropped.formUnion(others)
  for (name, value) in fields where name.lowercased() == "connection" {
    for item in value.split(separator: ",") {
      dropped.insert(item.trimmingCharacters(in: .whitespaces).lowercased())
    }
  }
  return fields.filter { !dropped.contains($0.0.lowercased()) }
}

extension Reply {
  /// Returns the reply with a connection that ends after it if its content is not as long as it declares.
  ///
  /// The client would otherwise wait for the rest. `URLSession` drops the content of some responses.
  func framed(for method: String) -> Reply {
    guard method != "HEAD", status != 204, status != 304 else { return self }
    let count = parts.reduce(0) { sum, part in
      if case .bytes(let bytes) = part { sum + bytes.count } else { sum }
    }
    var reply = self
    reply.closes = fields.contains { $0.0.lowercased() == "content-length" && $0.1 != "\(count)" }
    return reply
  }
}
