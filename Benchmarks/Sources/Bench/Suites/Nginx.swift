import Foundation

extension Process {
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
