import Dispatch
import Foundation
import FoundationNetworking
import Glibc

/// Pauses and resumes the transfer of a task, so that the origin waits for the reader of the body.
///
/// Foundation on Linux has no public API for this: `suspend()` closes the connection, and data that a delegate has not
/// received yet is queued without limit. libcurl can pause a transfer (`curl_easy_pause`), and Foundation exports a
/// function that does. The transfer is found with `Mirror`, like the properties in ``TaskReflection``. If a later
/// Foundation has another structure, or is linked statically, transfers are not paused and bodies are held in memory
/// until they are read. A test would then fail.
struct TransferPause: @unchecked Sendable {
  // Sendable: the handle is used only on `queue`, where Foundation uses it.

  /// The queue on which Foundation runs the transfer.
  let queue: DispatchQueue
  /// The owner of the handle, which is valid as long as this value exists.
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

  /// Stops reading from the connection. Call this on ``queue``; a chunk may be in delivery.
  func begin() { _ = Self.setPauseState?(handle, 0, 1) }

  /// Resumes reading. Call this on ``queue`` while no chunk is in delivery. It may deliver a chunk before it returns.
  func end() { _ = Self.setPauseState?(handle, 0, 0) }
}
