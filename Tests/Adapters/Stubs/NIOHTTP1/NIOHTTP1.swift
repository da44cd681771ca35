// The declarations of swift-nio 2.100.0 that the adapters use.

/// The method of a request.
public struct HTTPMethod: RawRepresentable, Sendable, Hashable {
  /// The method as it is sent.
  public var rawValue: String

  /// A method.
  public init(rawValue: String) { self.rawValue = rawValue }

  /// GET.
  public static var GET: HTTPMethod { HTTPMethod(rawValue: "GET") }
  /// POST.
  public static var POST: HTTPMethod { HTTPMethod(rawValue: "POST") }
}

/// The version of HTTP.
public struct HTTPVersion: Sendable, Hashable {
  /// The major version.
  public var major: Int
  /// The minor version.
  public var minor: Int

  /// A version.
  public init(major: Int, minor: Int) {
    self.major = major
    self.minor = minor
  }

  /// HTTP/1.1.
  public static let http1_1 = HTTPVersion(major: 1, minor: 1)
  /// HTTP/2.
  public static let http2 = HTTPVersion(major: 2, minor: 0)
}

/// The status of a response.
public struct HTTPResponseStatus: Sendable, Hashable {
  /// The status code.
  public var code: UInt

  /// A status.
  public init(statusCode: Int) { code = UInt(statusCode) }

  /// 200.
  public static let ok = HTTPResponseStatus(statusCode: 200)
}

/// The head of a response.
public struct HTTPResponseHead: Sendable {
  /// The version of HTTP.
  public var version: HTTPVersion
  /// The status.
  public var status: HTTPResponseStatus
  /// The header fields.
  public var headers: HTTPHeaders

  /// A head.
  public init(version: HTTPVersion, status: HTTPResponseStatus, headers: HTTPHeaders = HTTPHeaders()) {
    self.version = version
    self.status = status
    self.headers = headers
  }
}

/// The header fields of a message, in their order.
public struct HTTPHeaders: RandomAccessCollection, Sendable {
  /// One field.
  public typealias Element = (name: String, value: String)
  private let fields: [(name: String, value: String)]

  /// The given fields.
  public init(_ headers: [(String, String)] = []) { fields = headers.map { (name: $0.0, value: $0.1) } }

  /// The position of the first field.
  public var startIndex: Int { fields.startIndex }
  /// The position after the last field.
  public var endIndex: Int { fields.endIndex }

  /// The field at a position.
  public subscript(position: Int) -> (name: String, value: String) { fields[position] }
}
