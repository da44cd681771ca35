import Synchronization

/// A gate that holds replies until it is opened, so that a test can order events without sleeping.
///
/// A new gate is closed. It opens once and stays open. One gate can hold any number of replies. All members can be
/// called from any thread.
public final class Gate: Sendable {
  private struct State {
    var isOpen = false
    var held: [Waker] = []
  }

  private let state = Mutex(State())
  private let arrived = Milestone()
  private let opened = Milestone()

  /// Creates a closed gate.
  public init() {}

  /// Whether `open()` was called.
  public var isOpen: Bool { state.withLock { $0.isOpen } }

  /// The number of replies that have reached this gate, including those that found it open.
  public var arrivals: Int { arrived.count }

  /// Opens the gate for all present and later replies. Opening an open gate does nothing.
  public func open() {
    let held: [Waker]? = state.withLock { state in
      if state.isOpen { return nil }
      state.isOpen = true
      let held = state.held
      state.held = []
      return held
    }
    guard let held else { return }
    for waker in held { waker.wake() }
    opened.advance()
  }

  /// Waits until `count` replies have reached this gate.
  ///
  /// - Returns: False if the task was cancelled first.
  @discardableResult
  public func waitForArrivals(count: Int = 1) async -> Bool {
    await arrived.wait(for: count)
  }

  /// Waits until the gate is open.
  ///
  /// - Returns: False if the task was cancelled first.
  @discardableResult
  public func waitUntilOpen() async -> Bool {
    await opened.wait(for: 1)
  }

  /// Records an arrival. Opening the gate then wakes `waker`, unless the gate is already open.
  func arrive(_ waker: Waker) {
    state.withLock { state in
      if !state.isOpen { state.held.append(waker) }
    }
    arrived.advance()
  }

  /// Reverts `arrive(_:)` for a connection that ended while it was held.
  func leave(_ waker: Waker) {
    state.withLock { state in
      state.held.removeAll { $0 === waker }
    }
  }
}
