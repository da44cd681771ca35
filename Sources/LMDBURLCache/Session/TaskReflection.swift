import Dispatch
import Foundation
import FoundationNetworking

/// Private properties of a task in Foundation on Linux: its session, its queue, and whether a delegate gets its data.
///
/// A URL protocol needs the session for its configuration, and the queue because a delivery must not overlap a
/// cancellation, which Foundation performs there. It may deliver chunks separately only to a delegate, because a task
/// with a completion handler would get only the last chunk.
///
/// The properties are read with `Mirror` when the protocol starts, while nothing changes them. If a later Foundation
/// names them differently, the session counts as unknown, and the data is delivered in one piece and without the queue.
/// Tests would then fail.
enum TaskReflection {
  /// Returns the session of a task. Reads no property that changes during the task's life.
  static func session(of task: URLSessionTask) -> URLSession? {
    properties(of: task)?.first { $0.label == "session" }?.value as? URLSession
  }

  /// Returns the queue on which Foundation starts, stops and cancels the task. Call this on that queue.
  static func queue(of task: URLSessionTask) -> DispatchQueue? {
    properties(of: task)?.first { $0.label == "workQueue" }?.value as? DispatchQueue
  }

  /// Returns the stored properties that `URLSessionTask` itself declares.
  private static func properties(of task: URLSessionTask) -> Mirror.Children? {
    mirrors(of: task).first { $0.subjectType == URLSessionTask.self }?.children
  }

  /// Returns the mirrors of an object's class and its superclasses.
  private static func mirrors(of object: AnyObject) -> some Sequence<Mirror> {
    sequence(first: Mirror(reflecting: object), next: \.superclassMirror)
  }

  /// Whether only a delegate receives the task's data, chunk by chunk. Call this on the task's queue.
  static func isDelegateDriven(_ task: URLSessionTask, in session: URLSession) -> Bool {
    let registry = Mirror(reflecting: session).children.first { $0.label == "taskRegistry" }?.value
    let behaviors = registry.flatMap { Mirror(reflecting: $0).children.first { $0.label == "behaviours" }?.value }
    return behaviors.map { isDelegateDriven(task.taskIdentifier, among: $0) } ?? false
  }

  /// Whether the behavior of a task, in the table of its session's tasks, is "call the delegate".
  static func isDelegateDriven(_ taskIdentifier: Int, among behaviors: Any) -> Bool {
    guard let table = behaviors as? any TaskTable, let behavior = table.entry(of: taskIdentifier) else { return false }
    // Only "call the delegate" has no payload.
    return Mirror(reflecting: behavior).children.isEmpty
  }
}

/// A dictionary by task identifier whose value type is private to Foundation.
///
/// A session may have thousands of tasks, each of which is looked up once. Linear searches would delay every session of
/// the process.
protocol TaskTable {
  func entry(of identifier: Int) -> Any?
}

extension Dictionary: TaskTable where Key == Int {
  func entry(of identifier: Int) -> Any? { self[identifier] }
}
