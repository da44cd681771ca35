import Foundation

/// An nginx on loopback with files of some sizes, which stay fresh for an hour.
final class LargeOrigin {
  private let server = Process()
  private let folder: String
  let port = Process.serverPort(4)

  init(folder: String, sizes: [Int]) throws {
    self.folder = folder
    for size in Set(sizes) {
      let file = open(Self.file(size, folder), O_CREAT | O_WRONLY, 0o644)
      defer { close(file) }
      let block = (0..<1 << 17).map { UInt64(truncatingIfNeeded: $0) &* 0x9E37_79B9_7F4A_7C15 }
      var rest = size
      while rest > 0 {
        let count = block.withUnsafeBytes { write(file, $0.baseAddress, min(rest, $0.count)) }
        guard count > 0 else { throw BenchError("the large file: \(errno)") }
        rest -= count
      }
    }
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log \(folder)/access.log; sendfile on; tcp_nopush on;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        server {
          listen 127.0.0.1:\(port); root \(folder); add_header Cache-Control "max-age=3600";
          location /slowed/ { alias \(folder)/; limit_rate 200m; }
        }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
  }

  private static func file(_ size: Int, _ folder: String) -> String { "\(folder)/\(size).bin" }
  func file(_ size: Int) -> String { Self.file(size, folder) }
  func url(_ size: Int) -> String { "http://127.0.0.1:\(port)/\(size).bin" }

  /// The URL of a file that is sent at 200 MB per second.
  func slowedURL(_ size: Int) -> String { "http://127.0.0.1:\(port)/slowed/\(size).bin" }

  /// The number of requests for a file so far.
  func requestCount(_ size: Int) throws -> Int {
    usleep(200_000)
    let log = String(decoding: try Data(contentsOf: URL(fileURLWithPath: folder + "/access.log")), as: UTF8.self)
    return log.split(separator: "\n").count { $0.contains("GET /\(size).bin ") }
  }

  func stop() { endProcess(server) }
}

/// An nginx with `proxy_cache` in front of the origin.
final class LargeProxy {
  private let server = Process()
  private let port: Int
  private let idle: MemoryPeak

  init(of origin: LargeOrigin, folder: String) throws {
    port = origin.port + 1
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log off; sendfile on; tcp_nopush on;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        proxy_cache_path \(folder)/cache keys_zone=large:1m max_size=10g use_temp_path=off;
        server {
          listen 127.0.0.1:\(port);
          location / {
            proxy_pass http://127.0.0.1:\(origin.port); proxy_http_version 1.1; proxy_cache large;
            add_header X-Cache $upstream_cache_status;
          }
        }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
    idle = try MemoryPeak(of: "\(server.processIdentifier)")
  }

  func url(_ size: Int) -> String { "http://127.0.0.1:\(port)/\(size).bin" }

  var peakMegabytes: Double {
    // It can be read while the process runs.
    (try? idle.megabytesBeyond()) ?? 0
  }

  func stop() { endProcess(server) }
}
