internal import CLMDB
internal import Glibc

/// The failure of a call into liblmdb, or into the operating system on its behalf.
///
/// It contains the function and the reason, but never a key, a value or a path.
///
///     do {
///       try environment.write { transaction throws(LMDBError) in … }
///     } catch LMDBError.Code.mapFull {
///       …
///     }
public struct LMDBError: Error, Sendable, Hashable {
  /// The reason of the failure.
  public let code: Code

  /// The C function that failed, for example `"mdb_put"`; for codes of this module, the function it was about to call.
  public let function: String

  /// Creates an error, for example to end a transaction from its closure.
  public init(code: Code, function: String) {
    self.code = code
    self.function = function
  }

  init(_ rawCode: CInt, _ function: String) {
    self.init(code: Code(rawValue: rawCode), function: function)
  }

  /// Returns the error of the system call that has just failed.
  static func system(_ function: String) -> LMDBError {
    LMDBError(errno, function)
  }
}

extension LMDBError: CustomStringConvertible {
  /// One line with the function, and the meaning and number of the code.
  public var description: String {
    "\(function) failed: \(code)"
  }
}

extension LMDBError.Code {
  /// Matches one code in a `catch` clause: `catch LMDBError.Code.mapFull`.
  public static func ~= (code: LMDBError.Code, error: any Error) -> Bool {
    (error as? LMDBError)?.code == code
  }

  /// Matches one code in a `catch` clause of a typed `do throws(LMDBError)`.
  public static func ~= (code: LMDBError.Code, error: LMDBError) -> Bool {
    error.code == code
  }
}

extension LMDBError.Code: CustomStringConvertible {
  /// The meaning of the code, and its number.
  public var description: String {
    if let own = ownDescription {
      return "\(own) (\(rawValue))"
    }
    if rawValue > 0 {
      // Do not use mdb_strerror: it calls strerror, which is not thread-safe.
      let text = UnsafeMutablePointer<CChar>.allocate(capacity: 256)
      defer { text.deallocate() }
      text.initialize(repeating: 0, count: 256)
      // For an unknown number, the buffer says so; the result adds no information.
      _ = strerror_r(rawValue, text, 256)
      return "\(String(cString: text)) (\(rawValue))"
    }
    return "\(String(cString: mdb_strerror(rawValue))) (\(rawValue))"
  }

  private var ownDescription: String? {
    switch self {
    case .problem: "MDB_PROBLEM: Unexpected internal problem"
    case .forked: "The environment was opened by the process that forked this one"
    case .undecodable: "The stored bytes are not what the table's codec writes"
    case .lockFileReplaced: "The lock file is not the one that other processes use"
    case .unsupportedLibrary: "The loaded liblmdb is not a version 0.9"
    default: nil
    }
  }
}
