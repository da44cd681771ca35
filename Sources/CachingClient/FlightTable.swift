import FoundationEssentials
import HTTPCaching
import ResponseStore
import Synchronization

/// All fetches under way: which of them can be joined, and which an invalidation must overtake.
///
/// The lock guards dictionary operations, and a look at a flight's state; nothing else is called while it is held.
final class FlightTable<Entry: StoredResponseView & Sendable>: Sendable {
  typealias Identified = [ObjectIdentifier: Flight<Entry>]

  fileprivate struct State {
    var joinable: [SharingKey: Flight<Entry>] = [:]
    var byKey: [RequestKey: Identified] = [:]
    var background: Identified = [:]
    var unshareable = UnshareableKeys()
    /// How many requests under way keep responses of a key from being stored.
    var barred: [RequestKey: Int] = [:]
  }

  /// What a request does that needs the origin.
  enum Place {
    case follow(Flight<Entry>)
    case lead(Flight<Entry>)
    /// A fetch has ended since the request looked into the store: its result may be there now.
    case lookAgain
  }

  private let state = Mutex(State())
  private let makeTicket: @Sendable (RequestKey) -> StoreTicket
  private let ended = Atomic<UInt64>(0)
  private let numbers = Atomic<UInt64>(0)

  /// - Parameter makeTicket: called for each fetch before its request is sent.
  init(makeTicket: @escaping @Sendable (RequestKey) -> StoreTicket) {
    self.makeTicket = makeTicket
  }

  /// How many fetches have ended. A request reads it before it looks into the store.
  var endedCount: UInt64 { ended.load(ordering: .acquiring) }

  /// A number nobody else has.
  func makeNumber() -> UInt64 {
    numbers.wrappingAdd(1, ordering: .relaxed).newValue
  }

  /// Finds the fetch to wait for, or makes the caller the leader of a new one: of one that nobody joins, while responses of
  /// this key are known not to be shareable.
  func enter(_ key: SharingKey, endedCount seen: UInt64, now: Date) -> Place {
    guard !state.withLock({ $0.unshareable.contains(key.key, at: now) }) else { return .lead(enterAlone(key.key)) }
    closeIfVoid(key)
    let made = makeFlight(key.key, sharingKey: key)
    return state.withLock { state in
      if let flight = state.joinable[key], flight.isOpen { return .follow(flight) }
      // A fetch files its result first and ends afterwards, so an unchanged count proves that the look was not too early.
      guard ended.load(ordering: .acquiring) == seen else { return .lookAgain }
      state.add(made)
      return .lead(made)
    }
  }

  /// A fetch that nobody joins. It is filed all the same, so that invalidations reach it.
  func enterAlone(_ key: RequestKey) -> Flight<Entry> {
    let made = makeFlight(key, sharingKey: nil)
    state.withLock { $0.add(made) }
    return made
  }

  /// A background fetch, or `nil` if any fetch of this key is under way already.
  func enterInBackground(_ key: SharingKey) -> Flight<Entry>? {
    closeIfVoid(key)
    let made = makeFlight(key.key, sharingKey: key, isBackground: true)
    return state.withLock { state in
      if let flight = state.joinable[key], flight.isOpen { return nil }
      state.add(made)
      state.background[ObjectIdentifier(made)] = made
      return made
    }
  }

  private func makeFlight(_ key: RequestKey, sharingKey: SharingKey?, isBackground: Bool = false) -> Flight<Entry> {
    Flight(key: key, sharingKey: sharingKey, ticket: makeTicket(key), isBackground: isBackground)
  }

  /// Sees to it that nobody joins a fetch that a removal by others covers. Without the lock: it asks the storage.
  private func closeIfVoid(_ key: SharingKey) {
    guard let flight = state.withLock({ $0.joinable[key] }), flight.ticket.isVoid else { return }
    close(flight)
  }

  /// The flight takes no more followers.
  func close(_ flight: Flight<Entry>) {
    state.withLock { $0.close(flight) }
  }

  /// The flight takes no more followers, and nobody waits for its end.
  func detach(_ flight: Flight<Entry>) {
    state.withLock { state in
      state.close(flight)
      state.background[ObjectIdentifier(flight)] = nil
    }
  }

  /// Notes whether what the origin answers under a key can be shared. If not, requests for it do not wait for each other for a while.
  func note(_ key: RequestKey, isShareable: Bool, now: Date) {
    state.withLock { state in
      if isShareable { state.unshareable.remove(key) } else { state.unshareable.insert(key, at: now) }
    }
  }

  /// The fetch is over and its result filed.
  func leave(_ flight: Flight<Entry>) {
    state.withLock { state in
      state.close(flight)
      state.byKey[flight.key]?[ObjectIdentifier(flight)] = nil
      if state.byKey[flight.key]?.isEmpty == true { state.byKey[flight.key] = nil }
      state.background[ObjectIdentifier(flight)] = nil
      ended.wrappingAdd(1, ordering: .acquiringAndReleasing)
    }
  }

  /// Takes the right to store from all fetches of a key but one; later requests do not join them.
  ///
  /// - Returns: whether there were any.
  func void(_ key: RequestKey, sparing spared: Flight<Entry>? = nil) -> Bool {
    let flights = state.withLock { $0.take([key]) }.filter { $0 !== spared }
    for flight in flights { flight.ticket.void() }
    return !flights.isEmpty
  }

  /// The same for every key that matches.
  func void(sparing spared: Flight<Entry>? = nil, where matches: (RequestKey) -> Bool) {
    let keys = state.withLock { Array($0.byKey.keys) }.filter(matches)
    let flights = state.withLock { $0.take(keys) }
    for flight in flights where flight !== spared { flight.ticket.void() }
  }

  /// Keeps whatever is fetched under a key from being stored: by fetches under way, and by those that begin before
  /// ``unbar(_:)``. Later requests do not join them.
  func bar(_ key: RequestKey) {
    state.withLock { $0.barred[key, default: 0] += 1 }
    _ = void(key)
  }

  /// Ends one ``bar(_:)``.
  func unbar(_ key: RequestKey) {
    state.withLock { state in
      guard let count = state.barred[key] else { return }
      state.barred[key] = count > 1 ? count - 1 : nil
    }
  }

  /// The background fetches under way.
  var backgroundFlights: [Flight<Entry>] {
    state.withLock { Array($0.background.values) }
  }
}

extension FlightTable.State {
  fileprivate mutating func add(_ flight: Flight<Entry>) {
    byKey[flight.key, default: [:]][ObjectIdentifier(flight)] = flight
    guard barred[flight.key] == nil else { return flight.ticket.void() }
    if let key = flight.sharingKey { joinable[key] = flight }
  }

  fileprivate mutating func close(_ flight: Flight<Entry>) {
    guard let key = flight.sharingKey, joinable[key] === flight else { return }
    joinable[key] = nil
  }

  /// The flights of some keys, none of them joinable any longer.
  fileprivate mutating func take(_ keys: [RequestKey]) -> [Flight<Entry>] {
    var flights: [Flight<Entry>] = []
    for key in keys {
      for flight in (byKey[key] ?? [:]).values {
        close(flight)
        flights.append(flight)
      }
    }
    return flights
  }
}
