import CDispatch
import Foundation
import FoundationNetworking
import Synchronization

/// The credentials in credential storages that the program itself stored.
///
/// Foundation on Linux stores each credential that a session's delegate gives, under a protection space of its own. It
/// never finds that credential again, because it compares spaces by identity. This library compares spaces by value,
/// and would find it for any session. This type therefore records which spaces Foundation has stored since the first
/// cache was created. Foundation does that on the queue of a session, where no code of a program runs.
final class ProgramCredentials: Sendable {
  /// The record of this process. The first access begins it.
  static let shared = ProgramCredentials()

  /// Begins to record the changes of credential storages.
  static func beginRecording() { _ = shared }

  private enum Owner {
    /// The program, with the number of the change that added the space.
    case program(Int)
    /// Foundation, or an unknown owner.
    case other
  }

  /// The spaces of one storage.
  private struct Record {
    weak var storage: URLCredentialStorage?
    var owners: [URLProtectionSpace: Owner] = [:]
    var lastChange = 0
    var isFull = false
  }

  private struct State {
    var records: [ObjectIdentifier: Record] = [:]
    var changeCount = 0

    func record(of storage: URLCredentialStorage) -> Record? {
      records[ObjectIdentifier(storage)].flatMap { $0.storage === storage ? $0 : nil }
    }

    /// Records the spaces that a storage has after a change.
    mutating func record(_ spaces: [URLProtectionSpace], of storage: URLCredentialStorage, isByProgram: Bool) {
      let known = record(of: storage)
      if known == nil { records = records.filter { $0.value.storage != nil } }
      var record = known ?? Record(storage: storage)
      defer { records[ObjectIdentifier(storage)] = record }
      record.isFull = record.isFull || spaces.count > ProgramCredentials.maximumSpaceCount
      guard !record.isFull else { return }
      changeCount += 1
      let newCount = spaces.count { known?.owners[$0] == nil }
      // A change by the program adds at most one space. If there are more, Foundation has added one at the same time.
      let isProgram = isByProgram && (known == nil || newCount <= 1)
      let owner = isProgram ? Owner.program(changeCount) : .other
      record.owners = [:]
      for space in spaces { record.owners[space] = known?.owners[space] ?? owner }
      if isByProgram {
        record.lastChange = changeCount
      } else if newCount == 0 {
        // Foundation always adds one. The last change by the program has recorded it, so that its owner is not known.
        for case (let space, .program(record.lastChange)) in record.owners { record.owners[space] = .other }
      }
    }
  }

  private let state = Mutex(State())
  /// The number of spaces in a storage above which new ones are not recorded, and do not count as the program's.
  ///
  /// Foundation adds one for each challenge, so that recording all of them would become slow.
  fileprivate static let maximumSpaceCount = 1000

  private init() {
    // Without a queue, the block is called on the thread that changes the storage. It is never removed.
    _ = NotificationCenter.default.addObserver(forName: .NSURLCredentialStorageChanged, object: nil, queue: nil) {
      [unowned self] notification in
      guard let storage = notification.object as? URLCredentialStorage else { return }
      record(storage, isByProgram: !Self.isOnSessionQueue)
    }
    record(.shared, isByProgram: true)
  }

  /// Whether the caller is on a queue on which Foundation runs the tasks of a session.
  ///
  /// If a later Foundation names its queues otherwise, what it stores counts as the program's. A test would then fail.
  static var isOnSessionQueue: Bool {
    let name = String(cString: dispatch_queue_get_label(nil))
    return name == "MultiHandle.isolation" || name == "org.swift.URLSessionTask.WorkQueue"
      || name.hasPrefix("URLSession<")
  }

  /// Begins to record the changes of a storage. What it already contains counts as the program's.
  func observe(_ storage: URLCredentialStorage) {
    if state.withLock({ $0.record(of: storage) == nil }) { record(storage, isByProgram: true) }
  }

  private func record(_ storage: URLCredentialStorage, isByProgram: Bool) {
    while true {
      let changeCount = state.withLock { $0.changeCount }
      // Without the lock, because a subclass may change the storage here.
      let spaces = Array(storage.allCredentials.keys)
      // A change that was recorded since may have been read later. To record this one would lose its spaces.
      let isLatest = state.withLock { state in
        guard state.changeCount == changeCount else { return false }
        state.record(spaces, of: storage, isByProgram: isByProgram)
        return true
      }
      if isLatest { return }
    }
  }

  /// Returns the credential that the program has stored for a protection space equal to `space`; nil if there is none.
  ///
  /// The default credential comes first. If the program has used several objects for the space, the last one counts.
  func credential(for space: URLProtectionSpace, in storage: URLCredentialStorage) -> URLCredential? {
    // A subclass may compare spaces by value itself.
    if let credential = storage.credential(at: space) { return credential }
    observe(storage)
    let record = state.withLock { $0.record(of: storage) }
    var last: (number: Int, credentials: [URLCredential]) = (0, [])
    for equal in storage.allCredentials.keys where equal.isSame(as: space) {
      guard case .program(let number)? = record?.owners[equal], number >= last.number,
        let credential = storage.credential(at: equal)
      else { continue }
      if number > last.number { last = (number, []) }
      last.credentials.append(credential)
    }
    // The order of those that were there first is not known.
    return last.credentials.allSatisfy { $0 == last.credentials.first } ? last.credentials.first : nil
  }
}

extension URLCredentialStorage {
  /// Returns the default credential under a space, or the only one; nil if there is neither.
  fileprivate func credential(at space: URLProtectionSpace) -> URLCredential? {
    if let credential = defaultCredential(for: space) { return credential }
    guard let others = credentials(for: space), others.count == 1 else { return nil }
    return others.first?.value
  }
}

extension URLProtectionSpace {
  /// Whether both objects are the same space, which Foundation on Linux does not compare.
  fileprivate func isSame(as other: URLProtectionSpace) -> Bool {
    host.lowercased() == other.host.lowercased() && port == other.port && scheme == other.scheme
      && realm == other.realm && isBasic == other.isBasic && isProxy() == other.isProxy()
  }

  private var scheme: String? {
    switch `protocol` {
    case NSURLProtectionSpaceHTTP: "http"
    case NSURLProtectionSpaceHTTPS: "https"
    default: `protocol`
    }
  }

  /// Whether the method is Basic, which is also the default of HTTP.
  private var isBasic: Bool {
    authenticationMethod == NSURLAuthenticationMethodHTTPBasic
      || authenticationMethod == NSURLAuthenticationMethodDefault
  }
}
