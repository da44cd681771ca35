extension RedisTierError {
  /// The error for a reply of Redis that is one, with Redis's own words.
  package init(reply text: String) {
    let words = Self.quotable(text)
    let code = String(text.prefix(while: { $0 != " " }))
    switch code {
    case "NOAUTH", "WRONGPASS":
      self.init(.accessDenied, "Redis refused the login: \(words)")
    case "NOPERM":
      self.init(.accessDenied, "Redis refused \(Self.refusedCommand(text) ?? "a command") to the user: \(words)")
    // Within a script, Redis 7.0 names no command, and later versions report the error of the command.
    case _ where text.contains("ACL failure in script") || text.contains("The user executing the script can't"):
      self.init(.accessDenied, "Redis refused \(Self.refusedCommand(text) ?? "a command") to the user: \(words)")
    // Before Redis 6, and without a user, AUTH reports plain errors.
    case "ERR" where text.contains("AUTH") || text.contains("password"):
      self.init(.accessDenied, "Redis refused the password: \(words)")
    case "ERR" where text.contains("max number of clients"):
      self.init(.tooManyClients, "Redis has too many clients: \(words)")
    // Only versions before 7.0 do not know the flags in the first line of a script.
    case "ERR" where text.contains("Error compiling script") && text.contains("near '#'"):
      self.init(.missingFeature, "the server cannot run scripts with flags ('#!lua', since Redis 7.0): \(words)")
    case "ERR" where text.hasPrefix("ERR unknown command"):
      self.init(.missingFeature, "the server does not have \(Self.refusedCommand(text) ?? "a command"): \(words)")
    case "FEATURE":
      self.init(.missingFeature, "the server does not have \(words.dropFirst(9).dropLast())")
    case "OOM":
      self.init(.outOfMemory, "Redis is out of memory: \(words)")
    case "READONLY", "MASTERDOWN":
      self.init(.wrongRole, "the Redis server is a replica, which is read only: \(words)")
    case "LOADING":
      self.init(.wrongRole, "the Redis server is still loading its data: \(words)")
    case "MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN":
      self.init(.cluster, "the server is a node of a Redis Cluster that does not serve the fleet's keys: \(words)")
    case "WRONGTYPE":
      self.init(.badReply, "a key of the fleet has another type: \(words)")
    case "LEASE":
      self.init(.otherFleetSettings, "the fleet uses another lease or another secret")
    default:
      self.init(.serverError, "Redis reported an error: \(words)", serverCode: code)
    }
  }

  /// The quoted name of a command in an error about permissions.
  private static func refusedCommand(_ text: String) -> String? {
    let parts = text.split(separator: "'", omittingEmptySubsequences: false)
    guard parts.count >= 3, !parts[1].isEmpty, parts[1].utf8.count <= 32 else { return nil }
    return "the command '\(parts[1])'"
  }

  /// An error of Redis without the parts that can contain arguments, and without the place in a script.
  private static func quotable(_ text: String) -> String {
    var text = text[...]
    for end in [", with args beginning with", " script: "] {
      if let range = text.firstRange(of: end) { text = text[..<range.lowerBound] }
    }
    while text.last == "." { text.removeLast() }
    return "'"
      + String(text.unicodeScalars.prefix(200).map { $0.value < 0x20 || $0.value == 0x7F ? "?" : Character($0) })
      + "'"
  }
}
