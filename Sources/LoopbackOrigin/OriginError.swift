import Glibc

/// The reason why an origin could not start.
public struct OriginError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The system call that failed.
  public let function: String

  /// The `errno` of the call.
  public let number: CInt

  /// The call and the system's message for the error.
  public var description: String {
    "the loopback origin could not start: \(function): \(String(cString: strerror(number))) (errno \(number))"
  }
}
