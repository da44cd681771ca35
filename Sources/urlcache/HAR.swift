/// The HTTP Archive format, version 1.2 (http://www.softwareishard.com/blog/har-12-spec/).
enum HAR {
  /// The part of a document that `warm` reads. Other members are ignored.
  struct Requests: Decodable {
    let log: Log

    struct Log: Decodable {
      let entries: [Entry]
    }

    struct Entry: Decodable {
      let request: Request
    }

    struct Request: Decodable {
      let method: String
      let url: String
      let headers: [Field]
    }
  }

  /// A header field or a query parameter.
  struct Field: Codable {
    let name: String
    let value: String
  }
}
