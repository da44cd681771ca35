import CCurl
import Glibc

/// A limit of the messages of TLS that are not content, such as session tickets and changes of keys.
///
/// OpenSSL processes all that have arrived within one call. A server that sends them without end would keep the I/O
/// thread within that call, in a handshake or after it. Then no other transfer is served, and no time limit is checked.
enum TLSMessageLimit {
  /// The maximum number of such messages and records in the life of a connection. A handshake has about 20.
  static let maximumCount = 2000

  /// Sets the limit for a connection of OpenSSL. No effect with another library, or if a function is missing.
  ///
  /// - Parameter context: The connection's `SSL_CTX`, before the handshake.
  static func apply(to context: UnsafeMutableRawPointer) {
    guard let functions else { return }
    functions.setCallback(context, note)
  }

  /// Counts a message, and ends the connection at the limit, as if the server had ended it.
  ///
  /// The count is in the callback's argument, which OpenSSL keeps for each connection.
  private static let note: Callback = { isSent, _, kind, bytes, byteCount, connection, count in
    guard isSent == 0, let connection, let functions = TLSMessageLimit.functions else { return }
    // The pseudo types 256 and 257 have the header of a record, and the type within it.
    let type = kind >= 256 ? CInt(byteCount > 0 ? bytes?.load(as: UInt8.self) ?? 0 : 0) : kind
    guard type != TLSMessageLimit.contentType else { return }
    let next = UInt(bitPattern: count) + 1
    _ = functions.control(
      connection, TLSMessageLimit.setArgument, 0, UnsafeMutableRawPointer(bitPattern: next))
    if next > TLSMessageLimit.maximumCount { functions.setShutdown(connection, TLSMessageLimit.receivedShutdown) }
  }

  // MARK: OpenSSL

  private typealias Callback =
    @convention(c) (
      CInt, CInt, CInt, UnsafeRawPointer?, Int, UnsafeMutableRawPointer?, UnsafeMutableRawPointer?
    ) -> Void

  /// Functions of the OpenSSL that libcurl uses, which a process may contain in several versions.
  private struct Functions: Sendable {
    let setCallback: @Sendable @convention(c) (UnsafeMutableRawPointer, Callback) -> Void
    let control: @Sendable @convention(c) (UnsafeMutableRawPointer, CInt, Int, UnsafeMutableRawPointer?) -> Int
    let setShutdown: @Sendable @convention(c) (UnsafeMutableRawPointer, CInt) -> Void
  }

  private static let functions: Functions? = {
    guard let setCallback = LoadedLibcurl.symbol("SSL_CTX_set_msg_callback"),
      let control = LoadedLibcurl.symbol("SSL_ctrl"), let setShutdown = LoadedLibcurl.symbol("SSL_set_shutdown")
    else { return nil }
    return Functions(
      setCallback: unsafeBitCast(
        setCallback, to: (@Sendable @convention(c) (UnsafeMutableRawPointer, Callback) -> Void).self),
      control: unsafeBitCast(
        control,
        to: (@Sendable @convention(c) (UnsafeMutableRawPointer, CInt, Int, UnsafeMutableRawPointer?) -> Int).self),
      setShutdown: unsafeBitCast(
        setShutdown, to: (@Sendable @convention(c) (UnsafeMutableRawPointer, CInt) -> Void).self))
  }()

  /// `SSL3_RT_APPLICATION_DATA`.
  private static let contentType: CInt = 23
  /// `SSL_CTRL_SET_MSG_CALLBACK_ARG`.
  private static let setArgument: CInt = 16
  /// `SSL_RECEIVED_SHUTDOWN`.
  private static let receivedShutdown: CInt = 2
}
