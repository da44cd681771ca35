import CCurl

/// A libcurl handle for one attempt of a request. Only the I/O thread uses it.
///
/// It serves no second request: `curl_easy_reset` of libcurl 7.88 keeps a pointer to the last field, and a response
/// that begins with a folded line then writes to freed memory.
final class EasyHandle {
  /// libcurl's `CURL`.
  let curl: UnsafeMutableRawPointer
  private let errorBuffer: UnsafeMutablePointer<CChar>

  /// Creates a handle.
  ///
  /// - Returns: Nil if there is no memory.
  init?() {
    guard let curl = curl_easy_init() else { return nil }
    self.curl = curl
    errorBuffer = .allocate(capacity: Int(CURL_ERROR_SIZE))
    errorBuffer.initialize(repeating: 0, count: Int(CURL_ERROR_SIZE))
  }

  deinit {
    curl_easy_cleanup(curl)
    errorBuffer.deallocate()
  }

  /// libcurl's error text for the present transfer; empty if there is none.
  private var errorText: String { String(cString: errorBuffer) }

  /// Whether the present transfer used an existing connection.
  var hasReusedConnection: Bool { long(CURLINFO_NUM_CONNECTS) == 0 }

  /// Whether it is proven that the connection of the present transfer has no decrypted bytes that libcurl has not read.
  ///
  /// - Parameter usesTLS: Whether the origin is one with TLS.
  func isDecryptionDrained(usesTLS: Bool) -> Bool {
    var library = CURLSSLBACKEND_NONE
    guard let object = ccurl_get_tls(curl, &library) else { return !usesTLS }
    return DecryptedBytes.areAbsent(from: object, of: library)
  }

  /// The `errno` of the present transfer. It may be from an address that failed.
  private var systemError: Int { long(CURLINFO_OS_ERRNO) }

  /// Returns the error for libcurl's code.
  func error(_ result: CURLcode) -> CurlTransportError {
    CurlTransportError(result, systemError: systemError, text: errorText)
  }

  /// Makes libcurl close the connection after the present transfer.
  func forbidReuse() { set(CURLOPT_FORBID_REUSE, 1) }

  /// Makes libcurl report the progress of the present transfer to ``Callbacks/note``.
  func requestNotes() { set(CURLOPT_VERBOSE, 1) }

  private func long(_ info: CURLINFO) -> Int {
    var value = 0
    ccurl_get_long(curl, info, &value)
    return value
  }

  /// Configures the handle for a request. TLS sessions come from the share.
  func prepare(
    _ transfer: Transfer, of pool: ConnectionPool, _ configuration: CurlTransport.Configuration,
    share: UnsafeMutableRawPointer
  ) {
    setConnection(transfer, configuration, share)
    setRequest(transfer.request, configuration.proxy)

    let transferPointer = Unmanaged.passUnretained(transfer).toOpaque()
    let poolPointer = Unmanaged.passUnretained(pool).toOpaque()
    set(CURLOPT_PRIVATE, transferPointer)
    set(CURLOPT_HEADERDATA, transferPointer)
    ccurl_set_receiver(curl, CURLOPT_HEADERFUNCTION, Callbacks.line)
    set(CURLOPT_DEBUGDATA, transferPointer)
    ccurl_set_note_receiver(curl, Callbacks.note)
    if transfer.request.content?.isEmpty == false {
      set(CURLOPT_XFERINFODATA, transferPointer)
      ccurl_set_progress_receiver(curl, Callbacks.progress)
      set(CURLOPT_NOPROGRESS, 0)
    }
    set(CURLOPT_WRITEDATA, transferPointer)
    ccurl_set_receiver(curl, CURLOPT_WRITEFUNCTION, Callbacks.content)
    set(CURLOPT_OPENSOCKETDATA, transferPointer)
    ccurl_set_socket_opener(curl, Callbacks.openSocket)
    // A connection lives longer than the transfer that created it.
    set(CURLOPT_CLOSESOCKETDATA, poolPointer)
    ccurl_set_socket_closer(curl, Callbacks.closeSocket)
    set(CURLOPT_PREREQDATA, transferPointer)
    ccurl_set_request_guard(curl, Callbacks.guardConnection)
    set(CURLOPT_ERRORBUFFER, errorBuffer)
  }

  private func setConnection(
    _ transfer: Transfer, _ configuration: CurlTransport.Configuration, _ share: UnsafeMutableRawPointer
  ) {
    set(CURLOPT_NOSIGNAL, 1)
    // Otherwise cancelling a lookup from a silent name server blocks the thread until the lookup times out.
    set(CURLOPT_QUICK_EXIT, 1)
    set(CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1)
    set(CURLOPT_PROTOCOLS_STR, "http,https")
    set(CURLOPT_HTTPAUTH, 0)
    set(CURLOPT_TCP_KEEPALIVE, 1)
    set(CURLOPT_CONNECTTIMEOUT_MS, min(configuration.connectTimeout, transfer.timeout).positiveMilliseconds)
    set(CURLOPT_MAXAGE_CONN, configuration.idleConnectionTimeout.positiveSeconds)
    set(CURLOPT_MAXLIFETIME_CONN, configuration.maximumConnectionAge.positiveSeconds)
    // libcurl repeats any request that gets no response on an existing connection. A new connection prevents that.
    if transfer.isRepeated || !transfer.request.isIdempotent { set(CURLOPT_FRESH_CONNECT, 1) }

    switch configuration.proxy {
    case .environment: break
    case .none: set(CURLOPT_PROXY, "")
    case .server(let url, let bypassing):
      set(CURLOPT_PROXY, url)
      set(CURLOPT_NOPROXY, bypassing.joined(separator: ","))
    }

    // The bytes of the outer TLS connection, to the proxy, cannot be examined.
    if transfer.request.usesTLS, configuration.proxy.mayUseTLS { set(CURLOPT_FORBID_REUSE, 1) }

    set(CURLOPT_SHARE, share)
    if LoadedLibcurl.usesOpenSSL { ccurl_set_tls_preparer(curl, Callbacks.prepareTLS) }
    if let file = configuration.certificateAuthorityFile {
      for option in [CURLOPT_CAINFO, CURLOPT_PROXY_CAINFO] { set(option, file) }
    }
    // With an additional folder, libcurl would parse the whole bundle again for each connection.
    if configuration.certificateAuthorityFile != nil || LoadedLibcurl.hasCertificateBundle {
      for option in [CURLOPT_CAPATH, CURLOPT_PROXY_CAPATH] { set(option, nil as String?) }
    }
    if let certificate = configuration.clientCertificate {
      set(CURLOPT_SSLCERT, certificate.certificateFile)
      set(CURLOPT_SSLKEY, certificate.keyFile)
      set(CURLOPT_KEYPASSWD, certificate.keyPassword)
    }
  }

  private func setRequest(_ request: PreparedRequest, _ proxy: CurlTransport.Configuration.Proxy) {
    ccurl_set_url(curl, request.url)
    set(CURLOPT_PATH_AS_IS, 1)
    if let target = request.targetWithEmptyQuery {
      // A proxy requires the whole URL, and an origin must accept it (RFC 9112 section 3.2.2). With TLS, requests reach
      // the origin through a tunnel.
      set(CURLOPT_REQUEST_TARGET, !request.usesTLS && proxy.mayBeUsedForHTTP ? request.origin + target : target)
    }
    ccurl_set_fields(curl, request.fields)
    if let content = request.content {
      set(CURLOPT_POSTFIELDS, content.baseAddress)
      ccurl_set_offset(curl, CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t(content.count))
      set(CURLOPT_CUSTOMREQUEST, request.method)
    } else if request.method == "HEAD" {
      set(CURLOPT_NOBODY, 1)
    } else if request.method != "GET" {
      set(CURLOPT_CUSTOMREQUEST, request.method)
    }
  }

  // libcurl rejects a value only if there is no memory. Then the transfer fails as well.

  private func set(_ option: CURLoption, _ value: Int) {
    ccurl_set_long(curl, option, value)
  }

  private func set(_ option: CURLoption, _ value: String?) {
    ccurl_set_string(curl, option, value)
  }

  private func set(_ option: CURLoption, _ value: UnsafeMutableRawPointer?) {
    ccurl_set_pointer(curl, option, value)
  }
}
