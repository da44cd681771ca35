import Foundation
import FoundationNetworking
import HTTPCaching

/// The challenge for Basic authentication in a 401 (RFC 9110, section 11.6.1, and RFC 7617).
///
/// It is the only scheme that Foundation on Linux supports.
struct BasicChallenge {
  /// The name of the protection space; nil if the challenge names none.
  let realm: String?

  /// Finds the first Basic challenge among those of a response.
  init?(_ fields: HeaderFields) {
    for line in fields.values(of: "WWW-Authenticate") {
      // An element either begins a challenge, `scheme name=value`, or continues one, `name=value`.
      var isBasic = false
      for element in line.quotedListElements {
        let words = element.split(separator: " ", maxSplits: 1).map { String($0) }
        let beginsChallenge =
          words.count == 2 ? !words[0].contains("=") && !words[1].hasPrefix("=") : !element.contains("=")
        // A Basic challenge without a realm has ended.
        if beginsChallenge, isBasic { break }
        if beginsChallenge { isBasic = words[0].lowercased() == "basic" }
        guard isBasic else { continue }
        if let realm = (beginsChallenge ? words.dropFirst().first : element).flatMap(Self.realm(in:)) {
          self.realm = realm
          return
        }
      }
      guard !isBasic else {
        realm = nil
        return
      }
    }
    return nil
  }

  /// Returns the value of a `realm` parameter; nil for another parameter.
  private static func realm(in parameter: String) -> String? {
    let parts = parameter.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
    guard parts.count == 2, parts[0].trimmingCharacters(in: .whitespaces).lowercased() == "realm" else { return nil }
    var value = parts[1].trimmingCharacters(in: .whitespaces)[...]
    guard value.count >= 2, value.hasPrefix("\""), value.hasSuffix("\"") else { return String(value) }
    value = value.dropFirst().dropLast()
    var text = ""
    var isEscaped = false
    for character in value {
      if character == "\\", !isEscaped {
        isEscaped = true
      } else {
        text.append(character)
        isEscaped = false
      }
    }
    return text
  }

  /// The protection space of this challenge by a server; nil if the URL has no host.
  func space(of url: URL) -> URLProtectionSpace? {
    guard let host = url.host, let scheme = url.scheme?.lowercased() else { return nil }
    return URLProtectionSpace(
      host: host, port: url.port ?? (scheme == "https" ? 443 : 80), protocol: scheme, realm: realm,
      authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
  }
}

extension String {
  /// The elements of a list whose values can be quoted strings (RFC 9110, section 5.6.1), without outer spaces.
  fileprivate var quotedListElements: [String] {
    var elements: [String] = []
    var element = ""
    var isQuoted = false
    var isEscaped = false
    for character in self {
      if character == ",", !isQuoted {
        elements.append(element)
        element = ""
        continue
      }
      if character == "\"", !isEscaped { isQuoted.toggle() }
      isEscaped = isQuoted && character == "\\" && !isEscaped
      element.append(character)
    }
    elements.append(element)
    return elements.map { $0.trimmingCharacters(in: .whitespaces) }.filter { !$0.isEmpty }
  }
}
