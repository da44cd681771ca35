import Foundation
import LMDB
import Testing

@Suite("Fork safety")
struct ForkTests {
  @Test("A forked child cannot use its parent's environment but can open the directory itself")
  func child() async {
    await #expect(processExitsWith: .success) {
      let fixture = try Fixture()
      let environment = fixture.environment
      try fixture.put([1])
      _ = try fixture.keys()

      let child = fork()
      if child == 0 {
        // Only this thread exists in the child. The exit status is the number of the step that failed.
        func step(_ number: CInt, _ isPassed: Bool) {
          if !isPassed { _exit(number) }
        }
        let isForked = { (body: () throws(LMDBError) -> Void) in error(of: body)?.code == .forked }
        step(1, isForked { () throws(LMDBError) in try environment.read { _ throws(LMDBError) in } })
        step(2, isForked { () throws(LMDBError) in try fixture.put([2]) })
        step(3, isForked { () throws(LMDBError) in try environment.synchronize() })
        step(4, isForked { () throws(LMDBError) in try environment.setMapByteCount(2 << 20) })
        step(5, isForked { () throws(LMDBError) in _ = try environment.clearStaleReaders() })
        step(6, isForked { () throws(LMDBError) in try environment.reserveFileSpace(upToPage: 100) })
        step(7, environment.lastTransactionID > 0)
        step(8, environment.openedProcessID == getppid())
        do throws(LMDBError) {
          let own = try fixture.directory.open()
          step(9, own !== environment && own.openedProcessID == getpid())
          let table = try own.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
          try own.write { transaction throws(LMDBError) in try table.put([3], for: 3, in: transaction) }
          step(10, try own.read { transaction throws(LMDBError) in try table.contains(1, in: transaction) })
        } catch {
          _exit(11)
        }
        _exit(0)
      }
      var status: CInt = -1
      #expect(waitpid(child, &status, 0) == child)
      #expect(status == 0)
      #expect(try fixture.keys() == [1, 3])
      #expect(try environment.clearStaleReaders() == 0)
    }
  }
}
