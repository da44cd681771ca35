/// A user of Redis or of Sentinels, and the password.
package struct RedisLogin: Sendable {
  private let user: String?
  private let password: @Sendable () throws -> String

  /// - Parameters:
  ///   - user: nil for the default user.
  ///   - password: Called for each connection.
  package init(user: String?, password: @escaping @Sendable () throws -> String) {
    self.user = user
    self.password = password
  }

  /// Returns the command that logs in.
  func command() throws(RedisTierError) -> [String] {
    do {
      return ["AUTH"] + (user.map { [$0] } ?? []) + [try password()]
    } catch {
      throw RedisTierError(.accessDenied, "the password for Redis could not be read")
    }
  }
}
