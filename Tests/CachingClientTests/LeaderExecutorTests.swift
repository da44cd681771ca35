import FoundationEssentials
import Glibc
import HTTPCaching
import Synchronization
import Testing

@testable import CachingClient

/// Tests of the thread that a leader lends to its fetch.
@Suite("Executor of a leader", .timeLimit(.minutes(1)))
struct LeaderExecutorTests {
  @Test("A fetch runs on the thread of its leader until the leader has its response")
  func lending() async throws {
    let leaders = SerialThread()
    let storing = Mutex<[Bool]>([])
    let storage = MemoryStorage(whenStoring: { storing.withLock { $0.append(leaders.isCurrent) } })
    let fixture = Fixture(storage: storage)
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      // Resumes on another thread, like a response that arrives.
      try await Task.detached { try await gate.pass() }.value
      let isWhole = request.head.url.path() == "/whole"
      let head = fixture.ok("", fresh).head
      return IncomingResponse(head: head, body: isWhole ? ResponseBody(Data("body".utf8)) : .chunks(["bo", "dy"]))
    }
    for (path, isLent) in [("whole", true), ("chunks", false)] {
      let response = Task(executorPreference: leaders) {
        try await fixture.client.respond(to: get("http://example.com/\(path)"), over: transport)
      }
      gate.open()
      #expect(try await response.value.text() == "body")
      #expect(storing.withLock { $0.last } == isLent)
    }
    #expect(fixture.client.statistics.stored == 2)
  }

  @Test("Jobs run on other threads while the leader is busy, and after the end")
  func otherThreads() async {
    let executor = LeaderExecutor()
    let leaders = SerialThread()
    let leader = Task(executorPreference: leaders) { await executor.runUntilEnd() }
    let places = await Task(executorPreference: executor) {
      let first = leaders.isCurrent
      // Both jobs are queued while this one runs: one for the leader, and one for another thread.
      let both = await withTaskGroup(of: Bool.self, returning: [Bool].self) { group in
        for _ in 0..<2 { group.addTask { leaders.isCurrent } }
        return await group.reduce(into: []) { $0.append($1) }
      }
      executor.end()
      await Task.yield()
      return [first] + both.sorted { $0 && !$1 } + [leaders.isCurrent]
    }.value
    #expect(places == [true, true, false, false])
    await leader.value
  }

  @Test("A job that waits for a leader runs when the leader leaves")
  func leaving() async {
    let executor = LeaderExecutor()
    let task = Task(executorPreference: executor) { "done" }
    executor.end()
    #expect(await task.value == "done")
    await executor.runUntilEnd()
  }
}

/// An executor with one thread, which ends when the executor is released.
private final class SerialThread: TaskExecutor {
  private let jobs: AsyncJobs

  init() {
    jobs = AsyncJobs()
    let jobs = jobs
    let box = Unmanaged.passRetained(jobs)
    var id = pthread_t()
    pthread_create(
      &id, nil,
      { argument in
        let jobs = Unmanaged<AsyncJobs>.fromOpaque(argument!).takeRetainedValue()
        jobs.run()
        return nil
      }, box.toOpaque())
    pthread_detach(id)
  }

  deinit { jobs.stop() }

  var isCurrent: Bool { jobs.isCurrent }

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    jobs.add { [self] in job.runSynchronously(on: asUnownedTaskExecutor()) }
  }
}

/// The jobs of a thread, in order.
private final class AsyncJobs: @unchecked Sendable {
  // `@unchecked Sendable`: `mutex` guards the variables.
  private var mutex = pthread_mutex_t()
  private var condition = pthread_cond_t()
  private var waiting: [() -> Void] = []
  private var isStopped = false
  private var thread: pthread_t?

  init() {
    pthread_mutex_init(&mutex, nil)
    pthread_cond_init(&condition, nil)
  }

  var isCurrent: Bool {
    pthread_mutex_lock(&mutex)
    defer { pthread_mutex_unlock(&mutex) }
    return thread.map { pthread_equal($0, pthread_self()) != 0 } ?? false
  }

  func add(_ job: @escaping () -> Void) { change { waiting.append(job) } }

  func stop() { change { isStopped = true } }

  private func change(_ body: () -> Void) {
    pthread_mutex_lock(&mutex)
    body()
    pthread_cond_signal(&condition)
    pthread_mutex_unlock(&mutex)
  }

  func run() {
    pthread_mutex_lock(&mutex)
    thread = pthread_self()
    while true {
      while waiting.isEmpty, !isStopped { pthread_cond_wait(&condition, &mutex) }
      guard !waiting.isEmpty else { break }
      let job = waiting.removeFirst()
      pthread_mutex_unlock(&mutex)
      job()
      pthread_mutex_lock(&mutex)
    }
    pthread_mutex_unlock(&mutex)
  }
}
