import CacheModel
import Testing

// The order of waiting requests, with a clock of its own.
@testable import CurlTransport

/// The decisions of the connection pool, without libcurl and sockets.
@Suite("The schedule of a connection pool")
struct PoolScheduleTests {
  private static func seconds(_ seconds: Double) -> MonotonicTime {
    MonotonicTime(nanoseconds: Int64((seconds * 1e9).rounded()))
  }

  private static func makeSchedule(
    perOrigin: Int = 2, total: Int = 3, triesNextAddress: Bool = true
  ) -> PoolSchedule {
    var configuration = CurlTransport.Configuration()
    configuration.maximumConnectionsPerOrigin = perOrigin
    configuration.maximumConnections = total
    return PoolSchedule(
      PoolSchedule.Settings(
        limits: OriginQueues.Limits(configuration), idleConnectionTimeout: .seconds(30), maximumConnections: total,
        triesNextAddress: triesNextAddress))
  }

  private static func begun(_ schedule: inout PoolSchedule) -> [PoolSchedule.ID] {
    var ids: [PoolSchedule.ID] = []
    while let id = schedule.nextToBegin() { ids.append(id) }
    return ids
  }

  /// The actions that are due at a time.
  private static func due(_ schedule: inout PoolSchedule, at time: Double) -> [PoolSchedule.Action] {
    PoolSchedule.Action.allCases.filter { schedule.takeDue($0, at: seconds(time)) }
  }

  @Test("Transfers start within the limits, origins take turns, and an ended one makes space")
  func limits() {
    var schedule = Self.makeSchedule()
    let now = Self.seconds(0)
    let a = (0..<4).map { _ in schedule.add(origin: "a", timeout: .seconds(9), at: now) }
    let b = (0..<4).map { _ in schedule.add(origin: "b", timeout: .seconds(9), at: now) }
    #expect(Self.begun(&schedule) == [a[0], b[0], a[1]])
    #expect(schedule.openConnectionLimit == 6)
    // One that waits is passed over after its end.
    schedule.remove(b[1], at: now)
    #expect(Self.begun(&schedule).isEmpty)
    schedule.remove(a[0], at: now)
    #expect(Self.begun(&schedule) == [b[2]])
    schedule.remove(b[0], at: now)
    schedule.remove(b[2], at: now)
    #expect(Self.begun(&schedule) == [a[2], b[3]])
  }

  @Test("A transfer whose number is used again is another one")
  func numbers() {
    var schedule = Self.makeSchedule(perOrigin: 1)
    let now = Self.seconds(0)
    let first = schedule.add(origin: "a", timeout: .seconds(9), at: now)
    let waiting = schedule.add(origin: "a", timeout: .seconds(9), at: now)
    #expect(Self.begun(&schedule) == [first])
    schedule.noteActivity(of: first, at: now)
    schedule.remove(waiting, at: now)
    let other = schedule.add(origin: "b", timeout: .seconds(9), at: now)
    #expect(other.index == waiting.index && other != waiting)
    #expect(Self.begun(&schedule) == [other])
    schedule.remove(first, at: now)
    let next = schedule.add(origin: "a", timeout: .seconds(9), at: now)
    #expect(Self.begun(&schedule) == [next])
    // The results were those of the first one.
    #expect(schedule.takeResults(at: now).isEmpty)
  }

  @Test("A paused transfer yields its place, and goes on without waiting")
  func pausing() {
    var schedule = Self.makeSchedule(perOrigin: 1)
    let now = Self.seconds(0)
    let ids = (0..<3).map { _ in schedule.add(origin: "a", timeout: .seconds(9), at: now) }
    #expect(Self.begun(&schedule) == [ids[0]])
    schedule.notePaused(ids[0])
    schedule.noteActivity(of: ids[0], at: now)
    #expect(schedule.takeResults(at: now) == [ids[0]])
    schedule.yieldPlaceIfPaused(ids[0])
    #expect(Self.begun(&schedule) == [ids[1]])
    let resumptions = [schedule.resume(ids[0], at: now), schedule.resume(ids[0], at: now)]
    #expect(resumptions == [true, false])
    schedule.remove(ids[1], at: now)
    #expect(Self.begun(&schedule).isEmpty)
    schedule.remove(ids[0], at: now)
    #expect(Self.begun(&schedule) == [ids[2]])
  }

  @Test("A transfer without progress is late, unless it is paused or sends, and a waiting one, too")
  func timeouts() {
    var schedule = Self.makeSchedule(perOrigin: 1)
    let slow = schedule.add(origin: "a", timeout: .seconds(10), at: Self.seconds(0))
    let waiting = schedule.add(origin: "a", timeout: .seconds(20), at: Self.seconds(1))
    let sending = schedule.add(origin: "b", timeout: .seconds(10), at: Self.seconds(0))
    let paused = schedule.add(origin: "c", timeout: .seconds(10), at: Self.seconds(0))
    #expect(Self.begun(&schedule) == [slow, sending, paused])
    schedule.notePaused(paused)
    #expect(schedule.nextTime == Self.seconds(10))
    #expect(Self.due(&schedule, at: 9) == [])
    schedule.noteSending(of: sending, at: Self.seconds(9))
    #expect(Self.due(&schedule, at: 10) == [.endLate])
    #expect(schedule.takeLate(at: Self.seconds(10)) == [slow])
    schedule.remove(slow, at: Self.seconds(10))
    #expect(Self.begun(&schedule) == [waiting])
    #expect(schedule.nextTime == Self.seconds(19))
    // Nothing was sent since, and the other one counts from its arrival.
    #expect(schedule.takeLate(at: Self.seconds(19)) == [sending])
    schedule.remove(sending, at: Self.seconds(19))
    schedule.noteSending(of: waiting, at: Self.seconds(20))
    #expect(schedule.takeLate(at: Self.seconds(21)) == [])
    #expect(schedule.takeLate(at: Self.seconds(40)) == [waiting])
  }

  @Test("The results of a small response are held for 5 ms, unless it ends before, and then published in each round")
  func holding() {
    var schedule = Self.makeSchedule()
    let (one, other) = (
      schedule.add(origin: "a", timeout: .seconds(9), at: Self.seconds(0)),
      schedule.add(origin: "a", timeout: .seconds(9), at: Self.seconds(0))
    )
    #expect(Self.begun(&schedule) == [one, other])
    for id in [one, other] {
      schedule.noteActivity(of: id, at: Self.seconds(1))
      schedule.hold(id)
    }
    #expect(schedule.takeResults(at: Self.seconds(1)) == [])
    schedule.noteActivity(of: one, at: Self.seconds(1.001))
    #expect(schedule.takeResults(at: Self.seconds(1.001)) == [])
    schedule.remove(other, at: Self.seconds(1.002))
    #expect(schedule.nextTime == Self.seconds(1.005))
    #expect(Self.due(&schedule, at: 1.005) == [.releaseHeld])
    #expect(schedule.takeResults(at: Self.seconds(1.005)) == [one])
    schedule.noteActivity(of: one, at: Self.seconds(2))
    #expect(schedule.takeResults(at: Self.seconds(2)) == [one])
  }

  @Test("Connections in progress are examined in intervals, and at once when one was lost, only if libcurl needs it")
  func examining() {
    for needsIt in [true, false] {
      var schedule = Self.makeSchedule(triesNextAddress: !needsIt)
      let id = schedule.add(origin: "a", timeout: .seconds(9), at: Self.seconds(0))
      #expect(Self.begun(&schedule) == [id])
      #expect(Self.due(&schedule, at: 0) == [])
      #expect(Self.due(&schedule, at: 0.25) == (needsIt ? [.examineConnecting] : []))
      #expect(Self.due(&schedule, at: 0.3) == [])
      schedule.noteLostConnectingSocket()
      #expect(Self.due(&schedule, at: 0.3) == (needsIt ? [.examineConnecting] : []))
      schedule.noteConnected(id)
      #expect(Self.due(&schedule, at: 0.9) == [])
      // A repeated attempt connects again.
      schedule.endAttempt(of: id)
      schedule.beginAttempt(of: id)
      #expect(Self.due(&schedule, at: 1) == [])
      #expect(Self.due(&schedule, at: 1.25) == (needsIt ? [.examineConnecting] : []))
    }
  }

  @Test("Connections are closed after a time without transfers, and libcurl is called when it asks for it")
  func closing() {
    var schedule = Self.makeSchedule()
    let id = schedule.add(origin: "a", timeout: .seconds(60), at: Self.seconds(0))
    #expect(Self.begun(&schedule) == [id])
    schedule.setTimer(Self.seconds(1))
    #expect(Self.due(&schedule, at: 1) == [.callLibrary])
    #expect(Self.due(&schedule, at: 1) == [])
    schedule.remove(id, at: Self.seconds(2))
    let next = schedule.add(origin: "a", timeout: .seconds(60), at: Self.seconds(31))
    #expect(Self.begun(&schedule) == [next])
    #expect(Self.due(&schedule, at: 32) == [])
    schedule.remove(next, at: Self.seconds(33))
    #expect(Self.due(&schedule, at: 62.9) == [.endLate])
    #expect(schedule.takeLate(at: Self.seconds(62.9)) == [])
    #expect(schedule.nextTime == Self.seconds(63))
    #expect(Self.due(&schedule, at: 63) == [.closeConnections])
    schedule.noteClosed()
    #expect(schedule.nextTime == .never)
  }

  @Test("Transfers without a descriptor start in place of an idle connection, at the end of another one, or later")
  func shortage() {
    var schedule = Self.makeSchedule(perOrigin: 8, total: 8)
    let now = Self.seconds(0)
    let ids = (0..<5).map { _ in schedule.add(origin: "a", timeout: .seconds(9), at: now) }
    #expect(Self.begun(&schedule) == ids)
    for id in ids[..<2] { schedule.noteConnected(id) }
    // There are two connections in use, and one is idle.
    for id in ids[2...].reversed() { schedule.postpone(id, connectionCount: 3, at: now) }
    #expect(schedule.totalConnectionLimit == 3)
    #expect(Self.begun(&schedule) == [ids[2]])
    schedule.postpone(ids[2], connectionCount: 2, at: now)
    #expect(schedule.totalConnectionLimit == 2)
    #expect(Self.begun(&schedule) == [])
    // A transfer that ends makes space.
    schedule.remove(ids[0], at: now)
    #expect(Self.begun(&schedule) == [ids[2]])
    // No connection was closed since.
    schedule.postpone(ids[2], connectionCount: 2, at: now)
    #expect(Self.begun(&schedule) == [])
    #expect(schedule.openConnectionLimit == 1)
    #expect(schedule.nextTime == Self.seconds(0.25))
    #expect(Self.due(&schedule, at: 0.24) == [])
    #expect(Self.due(&schedule, at: 0.25) == [.endShortage])
    #expect(Self.begun(&schedule) == Array(ids[2...]))
    #expect(schedule.totalConnectionLimit > 8)
    #expect(schedule.openConnectionLimit == 12)
  }
}
