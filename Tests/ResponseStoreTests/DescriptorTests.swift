import Foundation
import Glibc
import ResponseStore
import SystemFiles
import Testing

@Suite("File descriptors", .endsFixtures)
struct DescriptorTests {
  @Test("If the standard descriptors are closed, printed text never reaches the store's files")
  func closedStandardDescriptors() async throws {
    let fixture = try StoreFixture()
    fixture.close()
    let directory = fixture.directory
    await #expect(processExitsWith: .success) { [directory = directory as String] in
      /// Prints, and ends the process if a standard descriptor refers to a file of the store.
      func check(_ code: CInt) {
        for descriptor in CInt(0)...2 {
          var target = [CChar](repeating: 0, count: 4096)
          let count = readlink("/proc/self/fd/\(descriptor)", &target, target.count - 1)
          let path = String(decoding: target.prefix(max(count, 0)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
          if path.hasPrefix(directory) { _exit(code) }
          _ = write(descriptor, "printed", 7)
        }
        print("printed")
        fflush(nil)
      }
      for descriptor in CInt(0)...2 { close(descriptor) }
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      check(11)
      // Closing the descriptors later does not assign them to files of the store either.
      for descriptor in CInt(0)...2 { close(descriptor) }
      for number in 0..<2000 { store.store(childResponse("http://a.example/\(number)")) }
      while store.writePending() {}
      check(12)
      for descriptor in CInt(0)...2 { close(descriptor) }
      store.remove(.everything)
      store.fail()
      let reopened = try store.reopen(options: quietOptions(capacity: 16 << 20))
      check(13)
      reopened.store(childResponse("http://a.example/"))
      while reopened.writePending() {}
      reopened.close()
      check(14)
    }
    for name in try FileManager.default.subpathsOfDirectory(atPath: directory) where !name.hasSuffix("data-2") {
      let bytes = try Data(contentsOf: URL(fileURLWithPath: directory + "/" + name))
      #expect(bytes.range(of: Data("printed".utf8)) == nil, "\(name)")
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("If no descriptor is left for a larger index, the log names the call that failed and the reason")
  func noDescriptorForIndex() async throws {
    let fixture = try StoreFixture()
    fixture.close()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let lines = LogLines()
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20, log: lines))
      var limit = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      // The lowest free descriptor.
      let descriptor = open("/dev/null", O_RDONLY)
      close(descriptor)
      limit.rlim_cur = rlim_t(descriptor)
      setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      for number in 0..<600 {
        store.store(childResponse("http://a.example/\(number)"))
        store.writePending()
      }
      guard let line = lines.all.first(where: { $0.contains("The index cannot grow") }) else {
        exit(11)
      }
      guard line.contains("open failed: "), line.contains("(\(EMFILE))") else { exit(12) }
      guard !line.contains("The disk is full"), !line.contains("MDB_MAP_FULL") else { exit(13) }
    }
    try fixture.open()
  }
}
