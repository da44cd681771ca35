import Dispatch
import Foundation
import Glibc

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Pauses the transfer of a task and lets it go on, so that the origin waits for the reader of the body.
///
/// Foundation on Linux has no public means: `suspend()` closes the connection, and data that a delegate has not taken
/// yet is queued without limit. libcurl can pause a transfer (`curl_easy_pause`), and Foundation exports a function for
/// that. The transfer is found by `Mirror`, as the facts of ``TaskReflection`` are. Where a later Foundation has another
/// structure, or is linked statically, there is no pause and a body is held in memory until it is read. A test would
/// fail then.
struct TransferPause: @unchecked Sendable {
  // Sendable: the handle is used on `queue` alone, where Foundation uses it.

  /// The queue on which Foundation runs the transfer.
  let queue: DispatchQueue
  /// Owns the handle, which is therefore valid as long as this value exists.
  private let owner: AnyObject
  private let handle: UnsafeMutableRawPointer

  private typealias SetPauseState = @convention(c) (UnsafeMutableRawPointer, CInt, CInt) -> CInt

  private static let setPauseState: SetPauseState? = {
    guard let symbol = dlsym(nil, "CFURLSessionEasyHandleSetPauseState") else { return nil }
    return unsafeBitCast(symbol, to: SetPauseState.self)
  }()

  /// Finds the transfer of a task; nil if that fails. Call this on the task's queue.
  init?(of task: URLSessionTask) {
    guard Self.setPauseState != nil, let queue = TaskReflection.queue(of: task),
      let owner = TaskReflection.transfer(of: task),
      let handle = Mirror(reflecting: owner).children.first(where: { $0.label == "rawHandle" })?.value
        as? UnsafeMutableRawPointer
    else { return nil }
    self.queue = queue
    self.owner = owner
    self.handle = handle
  }

  /// Stops reading from the connection. Call this on ``queue``, also while a chunk is being delivered.
  func begin() { _ = Self.setPauseState?(handle, 0, 1) }

  /// Reads on. Call this on ``queue``, while no chunk is being delivered. A chunk may be delivered before it returns.
  func end() { _ = Self.setPauseState?(handle, 0, 0) }
}
