import Glibc

/// One boot of the machine. During a boot, the page cache keeps the writes of killed processes.
struct Boot: Equatable, Sendable {
  var high: UInt64
  var low: UInt64

  /// The present boot; nil if the system does not tell its ID.
  static let known: Boot? = {
    var text = [UInt8](repeating: 0, count: 64)
    let descriptor = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    let count = descriptor < 0 ? 0 : max(read(descriptor, &text, text.count), 0)
    if descriptor >= 0 { close(descriptor) }
    let digits = String(decoding: text.prefix(count), as: UTF8.self).filter(\.isHexDigit)
    guard let high = UInt64(digits.prefix(16), radix: 16), let low = UInt64(digits.dropFirst(16), radix: 16) else {
      return nil
    }
    return Boot(high: high, low: low)
  }()

  /// The present boot. Without an ID it is a random one, so that a process trusts only its own index.
  static let current = known ?? Boot(high: .random(in: 1 ... .max), low: .random(in: 1 ... .max))
}
