import Foundation
import LMDB
import Synchronization
import Testing

@Suite("Concurrency")
struct ConcurrencyTests {
  /// Writers move amounts between accounts. A reader that saw part of a transaction would find another sum.
  @Test("Readers see complete transactions in order while writers run")
  func readersAndWriter() throws {
    let fixture = try Fixture(mapByteCount: 16 << 20)
    let environment = fixture.environment
    let accounts = try environment.table("accounts", key: BigEndianUInt64Codec.self, value: BigEndianUInt64Codec.self)
    let count: UInt64 = 8
    try environment.write { transaction throws(LMDBError) in
      for account in 0..<count { try accounts.put(1_000, for: account, in: transaction) }
    }
    let findings = Findings()
    let threads = Threads()
    for index in 0..<4 {
      threads.start {
        var lastSeen: UInt64 = 0
        for _ in 0..<500 {
          findings.check { () throws(LMDBError) in
            try environment.read { transaction throws(LMDBError) in
              if transaction.id < lastSeen { findings.add("reader \(index) went back in time") }
              lastSeen = transaction.id
              var sum: UInt64 = 0
              for account in 0..<count { sum += try accounts.value(for: account, in: transaction) ?? 0 }
              if sum != count * 1_000 { findings.add("reader \(index) saw a sum of \(sum)") }
            }
          }
        }
      }
    }
    for writer in 0..<2 as Range<UInt64> {
      threads.start {
        var random = SeededGenerator(seed: writer)
        for _ in 0..<150 {
          findings.check { () throws(LMDBError) in
            try environment.write { transaction throws(LMDBError) in
              let (from, to) = (random.next() % count, random.next() % count)
              let amount = min(10, try accounts.value(for: from, in: transaction) ?? 0)
              let left = (try accounts.value(for: from, in: transaction) ?? 0) - amount
              try accounts.put(left, for: from, in: transaction)
              let balance = try accounts.value(for: to, in: transaction) ?? 0
              try accounts.put(balance + amount, for: to, in: transaction)
            }
          }
        }
      }
    }
    threads.join()
    #expect(findings.all == [])
  }

  @Test("What follows a commit runs before the next writer begins, sees the commit, and does not follow an error")
  func committed() throws {
    let fixture = try Fixture()
    let (environment, table) = (fixture.environment, fixture.table)
    try fixture.put([1])
    let lastPublished = Atomic(try environment.read { transaction throws(LMDBError) in transaction.id })
    let findings = Findings()
    let threads = Threads()
    for writer in 0..<3 as Range<UInt64> {
      threads.start {
        for number in 0..<100 as Range<UInt64> {
          var id: UInt64 = 0
          let fails = number.isMultiple(of: 7)
          let failure = error { () throws(LMDBError) in
            try environment.write { transaction throws(LMDBError) in
              id = transaction.id
              if lastPublished.load(ordering: .relaxed) != id - 1 { findings.add("\(id) began too early") }
              try table.put([], for: 1000 * writer + number, in: transaction)
              if fails { throw LMDBError(code: .problem, function: "test") }
            } committed: {
              if fails { findings.add("\(id) was not committed") }
              findings.check { () throws(LMDBError) in
                try environment.read { transaction throws(LMDBError) in
                  if transaction.id != id { findings.add("\(transaction.id) was read instead of \(id)") }
                }
              }
              lastPublished.store(id, ordering: .relaxed)
            }
          }
          if (failure != nil) != fails { findings.add("\(id) ended with \(String(describing: failure))") }
        }
      }
    }
    threads.join()
    #expect(findings.all == [])
  }

  //  reader                      writer
  //  ------                      ------
  //  read { sees 1
  //                              write { 2 }, returns
  //         still sees 1
  //  }
  //  read { sees 2 }
  @Test("A reader never waits for a writer, and a writer never waits for a reader")
  func noWaiting() throws {
    let fixture = try Fixture()
    try fixture.put([1])
    let (isReading, isWritten) = (Signal(), Signal())
    let findings = Findings()
    let threads = Threads()
    threads.start {
      isReading.wait()
      findings.check { () throws(LMDBError) in try fixture.put([2]) }
      isWritten.send()
    }
    try fixture.environment.read { transaction throws(LMDBError) in
      isReading.send()
      isWritten.wait()
      #expect(try !fixture.table.contains(2, in: transaction))
    }
    threads.join()
    #expect(try fixture.keys() == [1, 2])

    let (isWriting, isRead) = (Signal(), Signal())
    threads.start {
      isWriting.wait()
      findings.check { () throws(LMDBError) in if try fixture.keys() != [1, 2] { findings.add("keys") } }
      isRead.send()
    }
    try fixture.environment.write { transaction throws(LMDBError) in
      try fixture.table.put([], for: 3, in: transaction)
      isWriting.send()
      isRead.wait()
    }
    threads.join()
    #expect(findings.all == [])
  }
}
