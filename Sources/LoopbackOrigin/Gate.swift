import Synchronization

/// A gate that holds replies until it is opened, so that a test orders events without sleeping.
///
/// A gate is closed when it is made, opens once, and stays open. One gate may hold any number of replies. All members may be called from any thread.
public final class Gate: Sendable {
  private struct State {
    var isOpen = false
    var held: [Waker] = []
  }

  private let state = Mutex(State())
  private let arrived = Milestone()
  private let opened = Milestone()

  /// Makes a closed gate.
  public init() {}

  /// Whether `open()` was called.
  public var isOpen: Bool { state.withLock { $0.isOpen } }

  /// How many replies have come to this gate so far, those that found it open included.
  public var arrivals: Int { arrived.count }

  /// Lets every reply pass, those held now and those still to come. Opening an open gate does nothing.
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

  /// Waits until `count` replies have come to this gate.
  ///
  /// - Returns: false if the task was cancelled first.
  @discardableResult
  public func waitForArrivals(count: Int = 1) async -> Bool {
    await arrived.wait(for: count)
  }

  /// Waits, as a task, until the gate is open.
  ///
  /// - Returns: false if the task was cancelled first.
  @discardableResult
  public func waitUntilOpen() async -> Bool {
    await opened.wait(for: 1)
  }

  /// Notes an arrival; `waker` is woken when the gate opens, unless it is open already.
  func arrive(_ waker: Waker) {
    state.withLock { state in
      if !state.isOpen { state.held.append(waker) }
    }
    arrived.advance()
  }

  /// Takes back `arrive(_:)` for a connection that ended while it was held.
  func leave(_ waker: Waker) {
    state.withLock { state in
      state.held.removeAll { $0 === waker }
    }
  }
}
