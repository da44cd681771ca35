/// A request of a list, sitemap or HAR file.
struct WarmRequest: Sendable {
  let url: String
  /// The header fields to send.
  var fields: [(name: String, value: String)] = []
}
