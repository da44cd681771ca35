import Glibc
import StoreContract
import Synchronization

/// The clocks and boot IDs of all machines and of Redis, in a file that Shim/machine.c maps.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and each word is written by one thread at a time.
final class FleetClocks: @unchecked Sendable {
  let path: String
  private let words: UnsafeMutablePointer<Int64>
  private let byteCount: Int

  init(path: String, count: Int) {
    self.path = path
    byteCount = count * 64
    words = mapShared(path, byteCount: byteCount).assumingMemoryBound(to: Int64.self)
  }

  deinit { munmap(words, byteCount) }

  func setWallOffset(_ seconds: Double, of number: Int) { words[number * 8] = Int64(seconds * 1e9) }

  /// Sets the rate of the boot clock in thousandths, for all processes of a machine's life.
  func setBootRate(_ thousandths: Int, of number: Int) { words[number * 8 + 1] = Int64(thousandths) }
  func reboot(_ number: Int) { words[number * 8 + 2] += 1 }

  func environment(of number: Int, library: String) -> [String: String] {
    ["LD_PRELOAD": library, "MACHINE_STATE": path, "MACHINE_NUMBER": "\(number)"]
  }
}

/// A machine of the series: its process, its directory and its network.
final class FleetHost: Sendable {
  let number: Int
  let proxy: FleetProxy
  private let directory: String
  private let arguments: [String]
  private let environment: [String: String]
  private let process = Mutex<Process>(Process())
  private let isProcessBusy = Atomic(false)
  private let isNetworkBusy = Atomic(false)

  private struct Process {
    var child: Child?
    /// The output of all processes of the machine so far.
    var outputPaths: [String] = []
    var unexpectedEnds: [String] = []
  }

  /// - Parameters:
  ///   - proxy: The network of the machine.
  ///   - arguments: The arguments of the process.
  init(number: Int, directory: String, proxy: FleetProxy, environment: [String: String], arguments: [String]) {
    self.number = number
    self.directory = directory
    self.proxy = proxy
    self.environment = environment.merging(["MACHINE_PORTS": proxy.ports]) { $1 }
    self.arguments = arguments
    start()
  }

  func start() {
    process.withLock { process in
      let path = "\(directory)/machine.\(number).\(process.outputPaths.count)"
      process.outputPaths.append(path)
      process.child = Child.start(arguments, outputPath: path, environment: environment)
    }
  }

  func signal(_ signal: CInt) {
    if let child = process.withLock({ $0.child }) { child.kill(signal) }
  }

  /// Waits until the process ends. Any end but the expected one is a failure of the series.
  ///
  /// A machine ends after its last purge, which may wait for as long as its time limit, and then closes its cache.
  func wait(expecting expected: Child.End, seconds: Double = 120) {
    guard let child = process.withLock({ $0.child.take() }) else { return }
    let end = child.wait(seconds: seconds)
    guard end != expected else { return }
    process.withLock { $0.unexpectedEnds.append("machine \(number) \(end): \(child.output.suffix(2000))") }
  }

  var unexpectedEnds: [String] { process.withLock { $0.unexpectedEnds } }

  /// The lines of all processes with a prefix.
  func lines(withPrefix prefix: String) -> [Substring] {
    process.withLock { $0.outputPaths }.flatMap { path in
      Child(processID: 0, outputPath: path).output.split(separator: "\n").filter { $0.hasPrefix(prefix) }
    }
  }

  /// Runs a fault of the process or of the network, unless another one is under way there.
  func exclusively(_ fault: FleetFault, _ body: () -> Void) {
    if fault.isOfNetwork {
      Self.exclusively(isNetworkBusy, body)
    } else {
      Self.exclusively(isProcessBusy, body)
    }
  }

  private static func exclusively(_ isBusy: borrowing Atomic<Bool>, _ body: () -> Void) {
    guard !isBusy.exchange(true, ordering: .acquiring) else { return }
    body()
    isBusy.store(false, ordering: .releasing)
  }
}
