/// The HTTP Archive format, version 1.2 (http://www.softwareishard.com/blog/har-12-spec/).
enum HAR {
  /// The members of a request that `warm` reads. Others are ignored.
  struct RecordedRequest: Decodable {
    let method: String
    let url: String
    let headers: [Field]
  }

  /// A header field or a query parameter.
  struct Field: Codable {
    let name: String
    let value: String
  }

  /// The beginning and the end of a document whose entries are written one by one.
  static let documentStart = """
    {"log": {"version": "1.2", "creator": {"name": "urlcache", "version": "\(URLCacheTool.version)"}, "entries": [

    """
  static let documentEnd = "\n]}}\n"

  /// A stored response and the request for it.
  ///
  /// Members that the format requires, but that a cache does not know, have the format's value for "unknown".
  struct Entry: Encodable {
    let startedDateTime: String
    let time = 0
    let request: Request
    let response: Response
    let cache = Empty()
    let timings = Timings()
    /// The partition of the cache key; absent if it is empty.
    let partition: String?

    private enum CodingKeys: String, CodingKey {
      case startedDateTime, time, request, response, cache, timings
      // The format reserves names with an underscore for members that it does not define.
      case partition = "_partition"
    }
  }

  struct Request: Encodable {
    let method: String
    let url: String
    let httpVersion = "HTTP/1.1"
    let cookies: [Empty] = []
    let headers: [Field]
    let queryString: [Field]
    let headersSize = -1
    let bodySize = 0
  }

  struct Response: Encodable {
    let status: Int
    let statusText = ""
    let httpVersion = "HTTP/1.1"
    let cookies: [Empty] = []
    let headers: [Field]
    let content: Content
    let redirectURL: String
    let headersSize = -1
    let bodySize: Int
  }

  struct Content: Encodable {
    let size: Int
    let mimeType: String
    var text: String?
    var encoding: String?
    var comment: String?
  }

  struct Timings: Encodable {
    let send = 0
    let wait = 0
    let receive = 0
  }

  struct Empty: Encodable {}
}
