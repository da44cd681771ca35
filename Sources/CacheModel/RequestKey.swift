import FoundationEssentials
import Glibc
import HTTPCaching

/// A cache key: method and target URI (RFC 9111, section 2), and a partition.
///
/// The order of the bytes keeps the entries of a host, and of a URL prefix, adjacent in the store:
/// `host 00 scheme ":" port 00 path?query 00 method 00 partition`. The fragment is dropped, the scheme is lowercased, a
/// missing port is filled in, and an empty path becomes `/`. The host and port of an HTTP URL are canonical, so that a
/// purge reaches a host in all its spellings: with percent-encoding, in another script, or as another form of an
/// address. The digits of percent-encoding are in upper case. Nothing else changes, because two other spellings of a
/// path may be two resources. The user of a URL is not part of the key. It selects a variant, like `Authorization`
/// (``/HTTPCaching/VaryKey``).
///
/// A value type that threads can share. Creating a key takes one pass over the URL and one allocation.
public struct RequestKey: Sendable, Hashable {
  /// The complete, ordered bytes.
  public let bytes: [UInt8]
  /// A digest that distributes keys in this process's hash tables, computed once because a miss uses it twenty times.
  ///
  /// It is keyed, so clients cannot choose keys that collide.
  public let spreadingDigest: UInt64

  /// Creates the key of a request; nil for a URL without a scheme, or an HTTP URL without a valid host and port.
  ///
  /// - Parameters:
  ///   - url: The target URI.
  ///   - method: The request method, `GET` by default. Methods are case-sensitive (RFC 9110, section 9.1).
  ///   - partition: Separates the entries of one user or tenant from those of another. Empty by default.
  public init?(url: URL, method: String = "GET", partition: String = "") {
    self.init(urlString: url.absoluteString, method: method, partition: partition)
  }

  /// Creates the key from the text of an absolute URL, like ``init(url:method:partition:)``.
  public init?(urlString: String, method: String = "GET", partition: String = "") {
    var hasUser = false
    self.init(urlString: urlString, method: method, partition: partition, hasUser: &hasUser)
  }

  /// Creates the key, and reports in `hasUser` whether the URL names a user, which is not part of the key.
  package init?(urlString: String, method: String, partition: String, hasUser: inout Bool) {
    var text = urlString
    let bytes = text.withUTF8 { utf8 -> [UInt8]? in
      guard let parts = URLParts(utf8) else { return nil }
      hasUser = parts.hasUser
      // Build on the stack: creating an array from complete bytes costs less than filling one.
      let byteCount = parts.maximumByteCount(in: utf8) + method.utf8.count + partition.utf8.count + 64
      return withUnsafeTemporaryAllocation(of: UInt8.self, capacity: byteCount) { buffer in
        var writer = KeyWriter(buffer: buffer)
        writer.appendOrigin(of: parts, in: utf8)
        writer.append(0)
        writer.appendTarget(of: parts, in: utf8)
        writer.append(0)
        if method == "GET" { writer.append("GET" as StaticString) } else { writer.append(method) }
        writer.append(0)
        writer.append(partition)
        return [UInt8](UnsafeBufferPointer(rebasing: buffer[..<writer.count]))
      }
    }
    guard let bytes else { return nil }
    self.init(storedBytes: bytes)
  }

  /// Wraps the complete bytes of a key.
  package init(storedBytes: [UInt8]) {
    bytes = storedBytes
    spreadingDigest = storedBytes.withUnsafeBytes { XXHash.digest64($0, secret: Self.secret) }
  }

  /// Returns the beginning of all keys of a host, with any scheme and port.
  ///
  /// - Parameter host: The host as in a URL or from `URL.host`, which omits the brackets of an IPv6 address.
  /// - Returns: Nil if the text is not one host alone.
  package static func prefix(host: String) -> [UInt8]? {
    HostName.hasEmptyLabel(host) ? nil : HostName.canonical(host).map { Array($0.utf8) + [0] }
  }

  /// Returns the beginning of all keys below a URL; nil for a URL that cannot be cached.
  ///
  /// - Parameter isOrigin: Whether the keys of the URL's whole origin (scheme, host, port) are meant.
  package static func prefix(url: URL, isOrigin: Bool = false) -> [UInt8]? {
    var text = url.absoluteString
    return text.withUTF8 { utf8 -> [UInt8]? in
      guard let parts = URLParts(utf8) else { return nil }
      return [UInt8](unsafeUninitializedCapacity: parts.maximumByteCount(in: utf8) + 32) { buffer, count in
        var writer = KeyWriter(buffer: buffer)
        writer.appendOrigin(of: parts, in: utf8)
        writer.append(0)
        if !isOrigin { writer.appendTarget(of: parts, in: utf8) }
        count = writer.count
      }
    }
  }

  /// The beginning of all keys of this URL, with any method and partition.
  package var targetPrefix: ArraySlice<UInt8> {
    var separators = 0
    for (index, byte) in bytes.enumerated() where byte == 0 {
      separators += 1
      if separators == 3 { return bytes[...index] }
    }
    return bytes[...]
  }
}

extension RequestKey {
  /// Compares the bytes with one `memcmp`.
  public static func == (left: RequestKey, right: RequestKey) -> Bool {
    guard left.bytes.count == right.bytes.count else { return false }
    return left.bytes.withUnsafeBytes { left in
      right.bytes.withUnsafeBytes { right in
        // Keys are never empty, so the pointers exist.
        guard let leftStart = left.baseAddress, let rightStart = right.baseAddress else { return true }
        return memcmp(leftStart, rightStart, left.count) == 0
      }
    }
  }

  /// A random secret of this process.
  package static let secret = XXHash.randomSecret()

  /// Hashes the digest, which is faster than hashing the bytes.
  public func hash(into hasher: inout Hasher) {
    hasher.combine(spreadingDigest)
  }
}
