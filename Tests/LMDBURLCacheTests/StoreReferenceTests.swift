import Foundation
import LMDBURLCache
import ResponseStore
import Synchronization
import Testing

@Suite("Reference to a cache's store")
struct StoreReferenceTests {
  private final class Stores: Sendable {
    let root = FileManager.default.temporaryDirectory.appendingPathComponent("reference-\(UUID().uuidString)")

    func open(_ number: Int) throws -> ResponseStore {
      var options = ResponseStore.Options(capacityByteCount: 1 << 20)
      options.runsInBackground = false
      return try ResponseStore.open(directory: root.path + "/\(number)", options: options)
    }

    // The directory is no longer needed.
    deinit { try? FileManager.default.removeItem(at: root) }
  }

  @Test("A replaced store is released when no reader uses it, and not before")
  func release() throws {
    let stores = Stores()
    let reference = AtomicStoreReference()
    reference.set(try stores.open(0))
    weak let first = reference.load()
    let second = try stores.open(1)
    reference.use { _ in
      // The reader is still active, so that the store is not released yet.
      reference.set(second)
      #expect(first != nil && first?.entryCount == 0)
    }
    #expect(reference.load() === second)
    // The next replacement releases the remaining store.
    let third = try stores.open(2)
    reference.set(third)
    #expect(first == nil)
    reference.set(third)
    #expect(reference.load() === third)
  }

  @Test("Readers in many threads find a live store while it is replaced repeatedly")
  func readers() throws {
    let stores = Stores()
    let reference = OnHeap()
    reference.reference.set(try stores.open(0))
    let isDone = Atomic<Bool>(false)
    withExtendedLifetime(reference) {
      DispatchQueue.concurrentPerform(iterations: 4) { thread in
        if thread == 0 {
          for number in 1..<15 {
            do { reference.reference.set(try stores.open(number)) } catch { Issue.record(error) }
          }
          isDone.store(true, ordering: .sequentiallyConsistent)
        }
        while !isDone.load(ordering: .sequentiallyConsistent) {
          let count = reference.reference.use { $0.capacityByteCount }
          guard count == 1 << 20 else {
            Issue.record("\(count ?? -1)")
            return
          }
        }
      }
    }
  }

  private final class OnHeap: Sendable {
    let reference = AtomicStoreReference()
  }
}
