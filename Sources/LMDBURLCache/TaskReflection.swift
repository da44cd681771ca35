import Dispatch
import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Three facts about a task that Foundation on Linux keeps to itself: its session, the queue on which it is started and
/// stopped, and whether a delegate gets its data.
///
/// A protocol must know the session's configuration, and whether its chunks may be delivered one by one: to a task with a
/// completion handler only the last one would be given. What it delivers must not cross a cancellation, which Foundation
/// carries out on the task's queue. All three are read from stored properties by `Mirror`, as the protocol is started, when
/// nothing changes them. Where a later Foundation names them differently, the session counts as unknown, the data is
/// delivered in one piece, and without the queue. Tests would fail then.
enum TaskReflection {
  /// The session of a task. Reads no property that changes while the task is alive.
  static func session(of task: URLSessionTask) -> URLSession? {
    properties(of: task)?.first { $0.label == "session" }?.value as? URLSession
  }

  /// The queue on which Foundation starts, stops and cancels the task. To be called on it.
  static func queue(of task: URLSessionTask) -> DispatchQueue? {
    properties(of: task)?.first { $0.label == "workQueue" }?.value as? DispatchQueue
  }

  /// The object that runs the task's transfer. Call this on the task's queue, while the task has a protocol of
  /// Foundation's.
  static func transfer(of task: URLSessionTask) -> AnyObject? {
    guard let storage = properties(of: task)?.first(where: { $0.label == "_protocolStorage" })?.value,
      let urlProtocol = Mirror(reflecting: storage).children.first?.value as? URLProtocol
    else { return nil }
    var mirror: Mirror? = Mirror(reflecting: urlProtocol)
    while let current = mirror {
      if let handle = current.children.first(where: { $0.label == "easyHandle" })?.value {
        // An optional, by its declaration.
        return Mirror(reflecting: handle).children.first.map { $0.value as AnyObject }
      }
      mirror = current.superclassMirror
    }
    return nil
  }

  /// The stored properties of `URLSessionTask`, whichever subclass it is.
  private static func properties(of task: URLSessionTask) -> Mirror.Children? {
    var mirror: Mirror? = Mirror(reflecting: task)
    while let current = mirror {
      if current.subjectType == URLSessionTask.self { return current.children }
      mirror = current.superclassMirror
    }
    return nil
  }

  /// Whether the task's data goes to a delegate, chunk by chunk, and to nobody else. To be called on the task's queue.
  static func isDelegateDriven(_ task: URLSessionTask, in session: URLSession) -> Bool {
    let registry = Mirror(reflecting: session).children.first { $0.label == "taskRegistry" }?.value
    let behaviours = registry.flatMap { Mirror(reflecting: $0).children.first { $0.label == "behaviours" }?.value }
    return behaviours.map { isDelegateDriven(task.taskIdentifier, among: $0) } ?? false
  }

  /// Whether the behavior of a task, in the table of its session's tasks, is to call the delegate.
  static func isDelegateDriven(_ taskIdentifier: Int, among behaviors: Any) -> Bool {
    guard let table = behaviors as? any TaskTable, let behaviour = table.entry(of: taskIdentifier) else { return false }
    // The one behavior without a payload is "call the delegate".
    return Mirror(reflecting: behaviour).children.isEmpty
  }
}

/// A dictionary by task identifier whose values are of a type that has no name here. A session may have thousands of
/// tasks, and each asks once: walking over all of them for each would hold up every session of the process.
protocol TaskTable {
  func entry(of identifier: Int) -> Any?
}

extension Dictionary: TaskTable where Key == Int {
  func entry(of identifier: Int) -> Any? { self[identifier] }
}
