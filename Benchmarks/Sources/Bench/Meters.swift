import Foundation
import Synchronization

/// The bytes read from and written to a disk by all processes.
///
/// The machine should be idle. The kernel's counts for each process are unusable, because they count a whole large
/// folio for one page.
struct DiskTraffic {
  var readByteCount = 0
  var writtenByteCount = 0

  /// Reads the counts of a folder's disk from `/sys/dev/block/…/stat`, in sectors of 512 bytes.
  ///
  /// The counts are 0 for file systems without a block device.
  init(of folder: String) {
    var status = stat()
    guard stat(folder, &status) == 0 else { return }
    // Like the macros `major` and `minor` of glibc.
    let device = UInt64(status.st_dev)
    let (major, minor) = (device >> 8 & 0xFFF | device >> 32 & ~0xFFF, device & 0xFF | device >> 12 & ~0xFF)
    let path = "/sys/dev/block/\(major):\(minor)/stat"
    let text = String(decoding: FileManager.default.contents(atPath: path) ?? Data(), as: UTF8.self)
    let fields = text.split(whereSeparator: { $0.isWhitespace }).compactMap { Int($0) }
    guard fields.count > 6 else { return }
    (readByteCount, writtenByteCount) = (fields[2] * 512, fields[6] * 512)
  }

  private init(readByteCount: Int, writtenByteCount: Int) {
    self.readByteCount = readByteCount
    self.writtenByteCount = writtenByteCount
  }

  static func - (left: DiskTraffic, right: DiskTraffic) -> DiskTraffic {
    DiskTraffic(
      readByteCount: left.readByteCount - right.readByteCount,
      writtenByteCount: left.writtenByteCount - right.writtenByteCount)
  }
}

/// Drops the pages of a store's `data.mdb` that no process has mapped from the page cache, so that the next reads are
/// cold.
///
/// Leaves `lock.mdb` alone: closing another descriptor of that file would release LMDB's locks in this process.
func dropPageCache(of folder: String) {
  let descriptor = open(folder + "/data-1/data.mdb", O_RDONLY)
  guard descriptor >= 0 else { fatalError("there is no data in \(folder)") }
  fsync(descriptor)
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED)
  close(descriptor)
}

/// The measurements of a command that has ended.
struct FinishedCommand {
  var milliseconds: Double
  /// The peak resident memory, including pages of mapped files.
  var peakMegabytes: Double
  var status: CInt

  /// Runs a program, and reads its output to the end or up to a number of lines before it closes the pipe.
  static func run(_ path: String, _ arguments: [String], lines: Int? = nil) throws -> FinishedCommand {
    var ends: [CInt] = [0, 0]
    guard pipe(&ends) == 0 else { throw BenchError("pipe: \(errno)") }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO)
    posix_spawn_file_actions_addclose(&actions, ends[0])
    posix_spawn_file_actions_addclose(&actions, ends[1])
    var words: [UnsafeMutablePointer<CChar>?] = ([path] + arguments).map { strdup($0) } + [nil]
    defer { words.forEach { free($0) } }
    var process: pid_t = 0
    let start = now()
    let rc = posix_spawn(&process, path, &actions, nil, &words, environ)
    close(ends[1])
    guard rc == 0 else {
      close(ends[0])
      throw BenchError("\(path) cannot be started: \(rc)")
    }
    var left = lines ?? .max
    var buffer = [UInt8](repeating: 0, count: 1 << 16)
    var peak = 0
    while left > 0 {
      peak = max(peak, peakKilobytes(of: process))
      var waiting = pollfd(fd: ends[0], events: Int16(POLLIN), revents: 0)
      guard poll(&waiting, 1, 2) > 0 else { continue }
      let count = read(ends[0], &buffer, buffer.count)
      guard count > 0 else { break }
      left -= buffer[..<count].count { $0 == UInt8(ascii: "\n") }
    }
    close(ends[0])
    var status: CInt = 0
    while waitpid(process, &status, WNOHANG) == 0 {
      peak = max(peak, peakKilobytes(of: process))
      usleep(500)
    }
    return FinishedCommand(
      milliseconds: Double(now() - start) / 1e6, peakMegabytes: Double(peak) / 1024, status: status)
  }

  /// Returns the peak memory of a running process. The value of `wait4` would begin with the memory of this process.
  private static func peakKilobytes(of process: pid_t) -> Int {
    let text = String(
      decoding: FileManager.default.contents(atPath: "/proc/\(process)/status") ?? Data(), as: UTF8.self)
    let line = text.split(separator: "\n").first { $0.hasPrefix("VmHWM:") }
    return line.flatMap { Int($0.filter(\.isNumber)) } ?? 0
  }
}

/// Looks entries up at a steady rate on its own thread and records the latencies.
final class PacedReader: Sendable {
  private let stop = StopFlag()
  private let thread = DispatchGroup()
  private let samples = Samples()

  private final class Samples: Sendable {
    let values = Mutex<[Double]>([])
  }

  /// - Parameter lookUp: Looks up one entry.
  init(perSecond: Int, _ lookUp: @escaping @Sendable () -> Void) {
    let stop = stop
    let thread = thread
    thread.enter()
    let body = Thread { [samples] in
      let interval = UInt64(1_000_000_000 / perSecond)
      var next = now()
      while !stop.isSet {
        let start = now()
        lookUp()
        let elapsed = Double(now() - start) / 1000
        samples.values.withLock { $0.append(elapsed) }
        next += interval
        let present = now()
        if next > present { usleep(UInt32((next - present) / 1000)) } else { next = present }
      }
      thread.leave()
    }
    body.stackSize = 1 << 20
    body.start()
  }

  /// Returns the latencies since the last call in microseconds, in ascending order.
  func take() -> [Double] {
    samples.values.withLock { samples in
      defer { samples = [] }
      return samples.sorted()
    }
  }

  func end() {
    stop.set()
    thread.wait()
  }
}

/// The peak of a process's resident memory since it was reset.
struct MemoryPeak {
  private let path: String
  private let idle: Double

  /// Resets the peak.
  init(of process: String = "self") throws {
    path = "/proc/\(process)"
    let descriptor = open(path + "/clear_refs", O_WRONLY)
    defer { close(descriptor) }
    guard descriptor >= 0, write(descriptor, "5", 1) == 1 else { throw BenchError("clear_refs: \(errno)") }
    idle = try Self.megabytes("VmRSS:", path)
  }

  func megabytesBeyond() throws -> Double { try Self.megabytes("VmHWM:", path) - idle }

  private static func megabytes(_ name: String, _ path: String) throws -> Double {
    let status = String(decoding: FileManager.default.contents(atPath: path + "/status") ?? Data(), as: UTF8.self)
    let line = status.split(separator: "\n").first { $0.hasPrefix(name) }
    guard let kilobytes = line.flatMap({ Double($0.filter(\.isNumber)) }) else { throw BenchError("no \(name)") }
    return kilobytes * 1024 / 1e6
  }
}

/// The time of all processors, in ticks of the kernel.
struct ProcessorTicks {
  private var total = 0
  private var idle = 0

  /// Reads `/proc/stat`. The counts are 0 without it.
  init() {
    let text = String(decoding: FileManager.default.contents(atPath: "/proc/stat") ?? Data(), as: UTF8.self)
    // user, nice, system, idle, iowait, irq, softirq, steal
    let fields = text.prefix { $0 != "\n" }.split(separator: " ").dropFirst().prefix(8).compactMap { Int($0) }
    guard fields.count == 8 else { return }
    (total, idle) = (fields.reduce(0, +), fields[3] + fields[4])
  }

  var busyPercent: Double { total > 0 ? Double(total - idle) / Double(total) * 100 : 0 }

  static func - (later: Self, earlier: Self) -> Self {
    var difference = later
    difference.total -= earlier.total
    difference.idle -= earlier.idle
    return difference
  }
}
