import Foundation

extension Process {
  /// Returns the port of one of ten servers of this process. They are numbered from 0.
  ///
  /// It is below the ports that the kernel gives to outgoing connections, of which the benchmarks have many.
  static func serverPort(_ number: Int) -> Int { 10_000 + Int(getpid()) % 2_000 * 10 + number }

  /// Starts nginx as this process, and waits until it accepts connections.
  ///
  /// - Parameters:
  ///   - configuration: The configuration, with a file `pid` and a log `error.log` in the folder.
  ///   - folder: The folder for the configuration.
  func runNginx(configuration: String, folder: String) throws {
    try Data(configuration.utf8).write(to: URL(fileURLWithPath: folder + "/nginx.conf"))
    executableURL = URL(fileURLWithPath: "/usr/sbin/nginx")
    arguments = ["-c", folder + "/nginx.conf", "-p", folder]
    standardError = FileHandle.nullDevice
    try run()
    let deadline = Date().addingTimeInterval(20)
    while !FileManager.default.fileExists(atPath: folder + "/pid") {
      guard Date() < deadline, isRunning else { throw BenchError("nginx does not start; see \(folder)/error.log") }
      usleep(10_000)
    }
  }
}
