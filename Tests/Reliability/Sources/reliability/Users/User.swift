import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Somebody who asks, and how the origin knows who it is.
struct User: Hashable, Sendable {
  enum Credentials: Hashable, Sendable {
    case none
    /// An `Authorization` field.
    case field
    /// User and password in the URL.
    case url
    /// A `Cookie` field; the origin says `Vary: Cookie`.
    case cookie
    /// A field that names the partition of the cache.
    case partition
    /// The delegate of the user's session answers the origin's 401.
    case challenge
  }

  var name: String
  var credentials: Credentials

  static let nobody = User(name: "nobody", credentials: .none)
  static let known: [User] = [
    nobody,
    User(name: "alice", credentials: .field), User(name: "bob", credentials: .field),
    User(name: "carol", credentials: .url), User(name: "dave", credentials: .url),
    User(name: "erin", credentials: .cookie), User(name: "frank", credentials: .cookie),
    User(name: "grace", credentials: .partition), User(name: "heidi", credentials: .partition),
  ]
  static let challenged: [User] = [
    User(name: "ivan", credentials: .challenge), User(name: "judy", credentials: .challenge),
  ]

  static let partitionField = "X-Tenant"
  /// Names the caller to the origin, which compares it with the credentials. No response varies by it.
  static let callerField = "X-Caller"

  /// - Parameter target: Path and query.
  func request(_ target: String, port: Int) -> URLRequest {
    let userInfo = credentials == .url ? "\(name):secret@" : ""
    guard let url = URL(string: "http://\(userInfo)127.0.0.1:\(port)\(target)") else { fail("no URL of \(target)") }
    var request = URLRequest(url: url)
    request.setValue(name, forHTTPHeaderField: Self.callerField)
    switch credentials {
    case .field: request.setValue("Bearer \(name)", forHTTPHeaderField: "Authorization")
    case .cookie: request.setValue("user=\(name)", forHTTPHeaderField: "Cookie")
    case .partition: request.setValue(name, forHTTPHeaderField: Self.partitionField)
    case .none, .url, .challenge: break
    }
    return request
  }
}
