import CacheModel
import HTTPCaching
import Synchronization

/// The records of the key spaces in a storage.
@usableFromInline
package final class SpaceRecords: Sendable {
  private let record: @Sendable (_ key: RequestKey) -> HeaderFields?
  private let hasEquivalents: @Sendable () -> Bool
  private let makeNumber: @Sendable (_ token: RemovalToken) -> UInt64
  /// Held while a record is made or changed.
  private let changes = Mutex(())

  /// - Parameters:
  ///   - hasEquivalents: Returns whether a response with No-Vary-Search may be stored. If not, a miss makes no second
  ///     lookup.
  ///   - number: Returns a number for the keys of a space whose record is then stored with a removal token. If two
  ///     processes make the record at once, each finds what the other has stored in the space only if they have the
  ///     same number. When a removal has removed the record, its number must never be returned again: it would bring
  ///     back the responses in the space. Random by default.
  ///   - record: Returns the fields of the record with a key; nil if there is none. It is no lookup of a response, and
  ///     not counted as one.
  package init(
    hasEquivalents: @escaping @Sendable () -> Bool = { true },
    number: @escaping @Sendable (_ token: RemovalToken) -> UInt64 = { _ in .random(in: .min ... .max) },
    record: @escaping @Sendable (_ key: RequestKey) -> HeaderFields?
  ) {
    self.record = record
    self.hasEquivalents = hasEquivalents
    makeNumber = number
  }

  /// Returns the record with a key; nil if there is none.
  @usableFromInline subscript(_ key: RequestKey) -> HeaderFields? { record(key) }

  /// Whether a response with No-Vary-Search may be stored.
  @usableFromInline var mayHaveEquivalents: Bool { hasEquivalents() }

  /// Returns the section of a variation in a space, which is made if there is none; nil if the space has too many.
  ///
  /// Only one thread at a time makes a section, so that all responses of a burst are stored in the same one. Other
  /// processes make the same section, unless something is removed meanwhile.
  ///
  /// - Parameters:
  ///   - variation: Nil for the space of a URL.
  ///   - key: The key of the record.
  ///   - token: A removal token from before this call. It must be stored with the changed record, so that no removal
  ///     that covers its sections is missed.
  ///   - store: Stores the changed record.
  func section(
    of variation: URLVariation?, inSpaceAt key: RequestKey, askedAt token: RemovalToken,
    storing store: (KeySpace) -> Void
  ) -> KeySpace.Section? {
    func stored() -> KeySpace? { record(key).flatMap { KeySpace($0) } }
    if let section = stored()?.section(of: variation) { return section }
    return changes.withLock { _ in
      let known = stored()
      if let section = known?.section(of: variation) { return section }
      let section = KeySpace.Section(variation, number: makeNumber(token))
      var space = known ?? KeySpace(section)
      if known != nil, !space.add(section) { return nil }
      store(space)
      return section
    }
  }
}
