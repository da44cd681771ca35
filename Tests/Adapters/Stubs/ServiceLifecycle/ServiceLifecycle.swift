// The declarations of swift-service-lifecycle 2.12.0 that the adapters use.
import Logging
import Synchronization

/// A part of a process that runs until its end.
public protocol Service: Sendable {
  /// Runs the service; returning ends it.
  func run() async throws
}

/// A signal of the operating system.
public struct UnixSignal: Sendable, Hashable {
  private let name: String

  /// SIGTERM.
  public static let sigterm = UnixSignal(name: "SIGTERM")
}

/// Waits until the service shuts down; throws `CancellationError` if its task is cancelled before.
public func gracefulShutdown() async throws {
  for await _ in Shutdown.current.begun() { return }
  throw CancellationError()
}

/// The shutdown of one service.
private final class Shutdown: Sendable {
  @TaskLocal static var current = Shutdown()
  private let state = Mutex<(hasBegun: Bool, waiting: [AsyncStream<Void>.Continuation])>((false, []))

  func begun() -> AsyncStream<Void> {
    let (stream, continuation) = AsyncStream.makeStream(of: Void.self)
    let hasBegun = state.withLock {
      $0.waiting.append(continuation)
      return $0.hasBegun
    }
    if hasBegun { continuation.yield() }
    return stream
  }

  func begin() {
    let waiting = state.withLock {
      $0.hasBegun = true
      return $0.waiting
    }
    for continuation in waiting { continuation.yield() }
  }
}

/// Runs services, and shuts them down in the reverse of their order.
public actor ServiceGroup: Service {
  private let services: [any Service]
  private let shutdowns: [Shutdown]
  private var tasks: [Task<Void, any Error>] = []

  /// A group of services.
  public init(
    services: [any Service], gracefulShutdownSignals: [UnixSignal] = [], cancellationSignals: [UnixSignal] = [],
    logger: Logger
  ) {
    self.services = services
    shutdowns = services.map { _ in Shutdown() }
  }

  /// Runs the services until all of them have ended.
  public func run() async throws {
    for (service, shutdown) in zip(services, shutdowns) {
      tasks.append(Task { try await Shutdown.$current.withValue(shutdown) { try await service.run() } })
    }
    let tasks = tasks
    try await withTaskCancellationHandler {
      for task in tasks { try await task.value }
    } onCancel: {
      for task in tasks { task.cancel() }
    }
  }

  /// Shuts down one service after another, the last one first.
  public func triggerGracefulShutdown() async {
    for (shutdown, task) in zip(shutdowns, tasks).reversed() {
      shutdown.begin()
      _ = await task.result
    }
  }
}
