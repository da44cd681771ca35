internal import CLMDB
internal import Glibc

/// A call into liblmdb, or into the operating system on its behalf, that failed.
///
/// It names the failing function and the reason; it never holds a key, a value or a path.
///
///     do {
///       try environment.write { transaction throws(LMDBError) in … }
///     } catch LMDBError.Code.mapFull {
///       …
///     }
public struct LMDBError: Error, Sendable, Hashable {
  /// Why the call failed.
  public let code: Code

  /// The C function that reported it, for example `"mdb_put"`; for the codes that are this module's own, the function
  /// that was about to be called.
  public let function: String

  /// Makes an error, for example to end a transaction from within its closure.
  public init(code: Code, function: String) {
    self.code = code
    self.function = function
  }

  init(_ rawCode: CInt, _ function: String) {
    self.init(code: Code(rawValue: rawCode), function: function)
  }

  /// The error of the system call that has just failed.
  static func system(_ function: String) -> LMDBError {
    LMDBError(errno, function)
  }
}

extension LMDBError: CustomStringConvertible {
  /// One line: function, C name or number of the code, and what it means.
  public var description: String {
    "\(function) failed: \(code)"
  }
}

extension LMDBError.Code {
  /// Lets a `catch` clause select one code: `catch LMDBError.Code.mapFull`.
  public static func ~= (code: LMDBError.Code, error: any Error) -> Bool {
    (error as? LMDBError)?.code == code
  }

  /// Lets a `catch` clause of a typed `do throws(LMDBError)` select one code.
  public static func ~= (code: LMDBError.Code, error: LMDBError) -> Bool {
    error.code == code
  }
}

extension LMDBError.Code: CustomStringConvertible {
  /// What the code means, and its number.
  public var description: String {
    if let own = ownDescription {
      return "\(own) (\(rawValue))"
    }
    if rawValue > 0 {
      // Not mdb_strerror, which would hand this to strerror, which is not safe with threads.
      let text = UnsafeMutablePointer<CChar>.allocate(capacity: 256)
      defer { text.deallocate() }
      text.initialize(repeating: 0, count: 256)
      // On an unknown number it says so in the buffer; its result adds nothing.
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
    case .dataFileReplaced: "The directory's data file is no longer the one that this process has open"
    default: nil
    }
  }
}
