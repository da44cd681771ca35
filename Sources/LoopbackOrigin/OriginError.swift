import Glibc

/// Why an origin could not start.
public struct OriginError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The system call that failed.
  public let function: String

  /// The `errno` it left.
  public let number: CInt

  /// The call and the system's own words for the error.
  public var description: String {
    "the loopback origin could not start: \(function): \(String(cString: strerror(number))) (errno \(number))"
  }
}
