import CHiredis
import Glibc

/// TLS between a connection and its socket: encrypts the bytes to send, and decrypts the received ones.
///
/// It works in memory. OpenSSL's own functions for sockets raise SIGPIPE, and cannot wait for a limited time.
final class TLSSession {
  private let ssl: OpaquePointer
  /// The received bytes, and those to send. `ssl` owns both.
  private let input: OpaquePointer
  private let output: OpaquePointer

  /// - Parameter host: The name that the server's certificate must have, unless the settings have one.
  init(_ settings: RedisTLS, host: String) throws(RedisTierError) {
    let context = try settings.makeContext()
    defer { SSL_CTX_free(context) }
    guard let ssl = SSL_new(context), let input = BIO_new(BIO_s_mem()), let output = BIO_new(BIO_s_mem()) else {
      throw RedisTierError(.tlsFailed, "there is no memory for TLS")
    }
    (self.ssl, self.input, self.output) = (ssl, input, output)
    SSL_set_bio(ssl, input, output)
    SSL_set_connect_state(ssl)
    let name = settings.serverName ?? host
    if X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1 { return }
    SSL_set_hostflags(ssl, UInt32(X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS))
    guard SSL_set1_host(ssl, name) == 1, CHiredis_set_server_name(ssl, name) == 1 else {
      throw RedisTierError(.tlsFailed, "the server's name cannot be that of a certificate")
    }
  }

  deinit { SSL_free(ssl) }

  /// Takes the next step of the handshake. Then send ``takeOutput()``.
  ///
  /// - Returns: Whether the handshake is complete, and the server's certificate is valid.
  func shakeHands() throws(RedisTierError) -> Bool {
    ERR_clear_error()
    let result = SSL_do_handshake(ssl)
    if result == 1 { return true }
    try check(result)
    return false
  }

  /// Encrypts bytes. Then send ``takeOutput()``.
  func write(_ bytes: [UInt8]) throws(RedisTierError) {
    var first = 0
    while first < bytes.count {
      ERR_clear_error()
      let count = bytes.withUnsafeBytes {
        SSL_write(ssl, $0.baseAddress! + first, CInt(min($0.count - first, 1 << 30)))
      }
      // Memory takes all, so there is nothing to wait for.
      guard count > 0 else { throw failure() }
      first += Int(count)
    }
  }

  /// Decrypts into a buffer. Then send ``takeOutput()``: the server may have asked for something.
  ///
  /// - Returns: The number of bytes; 0 if the server has ended the session; nil if more must be received first.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws(RedisTierError) -> Int? {
    ERR_clear_error()
    let count = SSL_read(ssl, buffer.baseAddress, CInt(buffer.count))
    if count > 0 { return Int(count) }
    if SSL_get_error(ssl, count) == SSL_ERROR_ZERO_RETURN { return 0 }
    try check(count)
    return nil
  }

  /// Takes bytes that were received.
  func receive(_ bytes: UnsafeRawBufferPointer) throws(RedisTierError) {
    guard BIO_write(input, bytes.baseAddress, CInt(bytes.count)) == bytes.count else {
      throw RedisTierError(.tlsFailed, "there is no memory for TLS")
    }
  }

  /// Returns the bytes to send.
  func takeOutput() -> [UInt8] {
    let count = BIO_ctrl_pending(output)
    guard count > 0 else { return [] }
    return [UInt8](unsafeUninitializedCapacity: count) { buffer, filled in
      filled = max(0, Int(BIO_read(output, buffer.baseAddress, CInt(count))))
    }
  }

  /// Throws unless more must be received.
  private func check(_ result: CInt) throws(RedisTierError) {
    guard SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ else { throw failure() }
  }

  private func failure() -> RedisTierError {
    let verification = SSL_get_verify_result(ssl)
    guard verification == Int(X509_V_OK) else {
      let text = X509_verify_cert_error_string(verification).map { String(cString: $0) } ?? "unknown"
      return RedisTierError(.tlsFailed, "the certificate of the server is not valid: \(text)")
    }
    return RedisTierError(.tlsFailed, "TLS with the server failed: \(RedisTLS.lastError)")
  }
}

extension RedisTLS {
  /// OpenSSL's words for the last error of this thread.
  fileprivate static var lastError: String {
    // OpenSSL has no words for an error of the system, such as a missing file, and adds errors of its own.
    let first = ERR_peek_error()
    if first & 1 << 31 != 0 { return String(cString: strerror(CInt(truncatingIfNeeded: first & 0x7fff_ffff))) }
    return ERR_reason_error_string(ERR_peek_last_error()).map { String(cString: $0) } ?? "unknown"
  }

  /// Checks that the files can be used.
  func check() throws(RedisTierError) { SSL_CTX_free(try makeContext()) }

  /// Makes OpenSSL's context, with the certificates of the files. Call `SSL_CTX_free` with it.
  ///
  /// - Throws: `RedisTierError` if a file cannot be used.
  func makeContext() throws(RedisTierError) -> OpaquePointer {
    ERR_clear_error()
    guard let context = SSL_CTX_new(TLS_client_method()) else {
      throw RedisTierError(.tlsFailed, "there is no memory for TLS")
    }
    do throws(RedisTierError) {
      func check(_ result: CInt, _ what: String) throws(RedisTierError) {
        if result != 1 { throw RedisTierError(.tlsFailed, "\(what): \(Self.lastError)") }
      }
      try check(CHiredis_restrict(context), "TLS 1.2 is not available")
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nil)
      if let file = certificateAuthorityFile {
        try check(SSL_CTX_load_verify_file(context, file), "the authority file '\(file)' cannot be used")
      } else {
        try check(SSL_CTX_set_default_verify_paths(context), "the system's certificates cannot be used")
      }
      if let certificate = clientCertificate {
        try check(
          SSL_CTX_use_certificate_chain_file(context, certificate.certificateFile),
          "the client certificate '\(certificate.certificateFile)' cannot be used")
        // An empty password, too, keeps OpenSSL from asking for one on the terminal.
        let result = (certificate.keyPassword ?? "").withCString { password in
          SSL_CTX_set_default_passwd_cb_userdata(context, UnsafeMutablePointer(mutating: password))
          defer { SSL_CTX_set_default_passwd_cb_userdata(context, nil) }
          return SSL_CTX_use_PrivateKey_file(context, certificate.keyFile, SSL_FILETYPE_PEM)
        }
        try check(result, "the key '\(certificate.keyFile)' of the client certificate cannot be used")
        try check(
          SSL_CTX_check_private_key(context),
          "the client certificate '\(certificate.certificateFile)' has another key than '\(certificate.keyFile)'")
      }
      return context
    } catch {
      SSL_CTX_free(context)
      throw error
    }
  }
}
