import Glibc
import Synchronization

/// A number in memory that several processes share.
///
/// `@unchecked Sendable`: the pointer is constant, every access is atomic, and `memory` keeps the number.
struct SharedWord: @unchecked Sendable {
  private let pointer: UnsafeMutablePointer<Atomic<UInt64>>
  private let memory: AnyObject

  /// - Parameter memory: The object that keeps the memory of the number.
  init(_ pointer: UnsafeMutablePointer<Atomic<UInt64>>, in memory: AnyObject) {
    (self.pointer, self.memory) = (pointer, memory)
  }

  /// Creates a zero that this process shares with its forked children only.
  init() {
    let page = MemoryPage()
    self.init(page.start.bindMemory(to: Atomic<UInt64>.self, capacity: 1), in: page)
  }

  @inline(__always)
  var value: UInt64 {
    get { pointer.pointee.load(ordering: .acquiring) }
    nonmutating set { pointer.pointee.store(newValue, ordering: .releasing) }
  }

  private final class MemoryPage {
    let start: UnsafeMutableRawPointer

    init() {
      let mapped = mmap(nil, IndexLayout.pageByteCount, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
      guard let mapped, mapped != MAP_FAILED else { fatalError("No memory for a shared number") }
      start = mapped
    }

    deinit { munmap(start, IndexLayout.pageByteCount) }
  }
}
