import Foundation
import FoundationNetworking

/// A user who sends requests, and the credentials by which the origin identifies the user.
struct User: Hashable, Sendable {
  enum Credentials: Hashable, Sendable {
    case none
    /// An `Authorization` field.
    case field
    /// A user name and password in the URL.
    case url
    /// A `Cookie` field; the origin's responses have `Vary: Cookie`.
    case cookie
    /// A field that selects the partition of the cache.
    case partition
    /// The delegate of the user's session responds to the origin's 401.
    case challenge
  }

  var name: String
  var credentials: Credentials

  static let anonymous = User(name: "anonymous", credentials: .none)
  static let known: [User] = [
    anonymous,
    User(name: "alice", credentials: .field), User(name: "bob", credentials: .field),
    User(name: "carol", credentials: .url), User(name: "dave", credentials: .url),
    User(name: "erin", credentials: .cookie), User(name: "frank", credentials: .cookie),
    User(name: "grace", credentials: .partition), User(name: "heidi", credentials: .partition),
  ]
  static let challenged: [User] = [
    User(name: "ivan", credentials: .challenge), User(name: "judy", credentials: .challenge),
  ]

  /// The slot of the user's pages in the ledger; nil if there is no such user.
  static func slot(of name: String) -> Int? { all.firstIndex { $0.name == name } }
  static let all = known + challenged + [User(name: UserRounds.unluckyName, credentials: .none)]

  static let partitionField = "X-Tenant"
  /// The field with the caller's name, which the origin compares with the credentials; no response varies by it.
  static let callerField = "X-Caller"

  /// Returns a request with the user's credentials.
  ///
  /// - Parameter target: The path and query.
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
