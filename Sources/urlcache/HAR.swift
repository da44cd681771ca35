/// The HTTP Archive format, version 1.2 (http://www.softwareishard.com/blog/har-12-spec/).
enum HAR {
  /// The members of a request that `warm` reads. Others are ignored.
  struct RecordedRequest: Decodable {
    let method: String
    let url: String
    let headers: [Field]
  }

  struct Field: Decodable {
    let name: String
    let value: String
  }

  /// The beginning and the end of a document whose entries are written one by one.
  static let documentStart = """
    {"log": {"version": "1.2", "creator": {"name": "urlcache", "version": "\(URLCacheTool.version)"}, "entries": [

    """
  static let documentEnd = "\n]}}\n"
}
