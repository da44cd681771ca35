public import FoundationEssentials
import HTTPCaching

/// A form of queries' content in which differences without a meaning are removed (RFC 10008, section 2.7).
///
/// Queries of one URL with equal normal forms and equal metadata share a stored response. Only the cache key depends on
/// the normal form: the origin receives the content as the caller gave it. A normal form that removes a difference with
/// a meaning leads to the response to another query.
public final class QueryNormalForm: Sendable, Hashable {
  /// The name. Two forms with the same name are the same form.
  public let name: String

  private let normalize: @Sendable (_ content: Data, _ contentType: String?) -> Data?

  /// Creates a normal form.
  ///
  /// - Parameters:
  ///   - name: The name, unique in the program.
  ///   - normalize: Returns the normal form of a content, given the value of `Content-Type`, or nil if there is none.
  ///     Called from any thread, for each request: it must be fast and deterministic.
  public init(
    name: String, normalize: @escaping @Sendable (_ content: Data, _ contentType: String?) -> Data?
  ) {
    self.name = name
    self.normalize = normalize
  }

  /// Returns the normal form of a content; nil if there is none, and the content counts as it is.
  public func normalized(_ content: Data, contentType: String?) -> Data? { normalize(content, contentType) }

  /// Whether both forms have the same name.
  public static func == (left: QueryNormalForm, right: QueryNormalForm) -> Bool { left.name == right.name }

  /// Hashes the name.
  public func hash(into hasher: inout Hasher) { hasher.combine(name) }
}

extension QueryNormalForm {
  /// JSON (RFC 8259) without insignificant whitespace, with the members of objects sorted by name.
  ///
  /// Its name is `json`. Numbers and strings keep their text: `1.0` and `1`, or `"a"` and `"\u0061"`, stay different.
  /// There is no normal form for another media type than `application/json` and those that end in `+json`, for another
  /// `charset` than UTF-8, and for these contents:
  ///
  /// - invalid JSON or UTF-8, and arrays and objects nested more than 128 deep;
  /// - an object with two names that some programs take for one, because they differ only in case or in the composition
  ///   of characters, or are equal; and a name with a `\`, which can be another spelling of such a name.
  ///
  /// - Complexity: Linear in the content, plus the sorting.
  public static let json = QueryNormalForm(name: "json") { content, contentType in
    isJSON(contentType) ? JSONNormalizer.normalized(content) : nil
  }

  /// Whether content of this type is JSON in UTF-8.
  private static func isJSON(_ contentType: String?) -> Bool {
    guard let contentType, !contentType.utf8.contains(UInt8(ascii: ",")) else { return false }
    let parts = contentType.utf8.split(separator: UInt8(ascii: ";"), omittingEmptySubsequences: false).map {
      String(Substring($0)).trimmingFieldSpace().asciiLowercased()
    }
    guard parts[0] == "application/json" || parts[0].hasSuffix("+json") else { return false }
    // JSON has no charset. A program that follows one may read other characters.
    return parts.dropFirst().allSatisfy {
      !$0.hasPrefix("charset") || $0 == "charset=utf-8" || $0 == "charset=\"utf-8\""
    }
  }
}
