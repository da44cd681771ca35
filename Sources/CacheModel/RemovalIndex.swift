import FoundationEssentials
import HTTPCaching

/// The latest removals, in the order of their numbers, and by the beginnings of the keys that they cover.
///
/// So the comparison of a response with them takes about the same time after any number of removals.
package struct RemovalIndex: Sendable {
  /// The number of removals at which the earlier half is forgotten.
  private let capacity: Int
  /// Removals up to this number are forgotten, or were never known.
  private var floor: UInt64
  /// The removals from number `floor` + 1 on.
  private var removals: [Removal] = []
  /// The numbers of the removals in each place, under its hash. Two places with one hash cost time only.
  private var numbers: [UInt64: [UInt64]] = [:]
  /// The fields of which removals by tag have tags; usually one list for all removals.
  private var tagFieldNames: [[String]] = []
  /// The numbers of the removals that may cover any key.
  private var numbersOfAnyKey: [UInt64] = []
  /// The lengths of the bytes that the places of each kind have.
  private var lengths = [Lengths](repeating: Lengths(), count: Place.Kind.allCases.count)

  /// The number of removals up to which each is compared, because that takes less time than the search.
  private static let scannedCount = 16

  /// Creates an empty index, in which the next removal has the number after this one.
  package init(after number: UInt64, capacity: Int) {
    floor = number
    self.capacity = capacity
  }

  /// The number of the last removal.
  package var last: UInt64 { floor + UInt64(removals.count) }

  // MARK: Changing

  /// Adds the removal with the next number.
  package mutating func append(_ removal: Removal) {
    if removals.count == capacity { forget(upTo: floor + UInt64(capacity / 2)) }
    removals.append(removal)
    let scope = removal.scope
    if case .tag(.bytes(let name), let fieldNames, let origin) = scope {
      insert(.tag, origin, name)
      if !tagFieldNames.contains(fieldNames) { tagFieldNames.append(fieldNames) }
    } else if let beginning = scope.beginning {
      insert(.beginning, beginning)
      if let path = scope.path { insert(.path, path) }
    } else {
      numbersOfAnyKey.append(last)
    }
  }

  private mutating func insert(_ kind: Place.Kind, _ bytes: some Collection<UInt8>, _ name: [UInt8] = []) {
    lengths[kind.rawValue].insert(bytes.count)
    numbers[Place(bytes).hash(kind, name[...]), default: []].append(last)
  }

  /// Forgets the removals up to a number, which then count as hard ones of everything. The next one has a later number.
  package mutating func forget(upTo number: UInt64) {
    guard number > floor else { return }
    let rest = removals.dropFirst(Int(clamping: number - floor))
    self = RemovalIndex(after: number, capacity: capacity)
    for removal in rest { append(removal) }
  }

  // MARK: Comparing

  /// Returns the removals after a number; nil if some of them are forgotten.
  package func removals(after number: UInt64) -> ArraySlice<Removal>? {
    number < floor ? nil : removals.dropFirst(Int(clamping: number - floor))
  }

  /// The effect of the removals after a number on a response. See ``RemovalScope/covers(key:storedAt:fields:)``.
  ///
  /// - Parameter key: The key of the response; nil if every removal may cover it.
  package func effect(
    after number: UInt64, on key: [UInt8]?, storedAt: Date, fields: () -> HeaderFields?
  ) -> RemovalEffect {
    guard let later = removals(after: number) else { return .removed }
    var effect = RemovalEffect.none
    func compare(with removal: Removal) {
      guard effect != .removed, key.map({ removal.scope.covers(key: $0, storedAt: storedAt, fields: fields) }) ?? true
      else { return }
      effect = effect.combined(with: removal.effect)
    }
    if let key, later.count > Self.scannedCount, let tags = tags(fields) {
      func compareEach(_ numbers: [UInt64]?) {
        for other in (numbers ?? []).reversed() {
          guard other > number, effect != .removed else { return }
          compare(with: removals[Int(other - floor - 1)])
        }
      }
      compareEach(numbersOfAnyKey)
      var place = Place()
      for length in 0...key.count {
        if length > 0 { place.append(key[length - 1]) }
        if has(.beginning, length) { compareEach(numbers[place.hash(.beginning)]) }
        if has(.tag, length) { for tag in tags { compareEach(numbers[place.hash(.tag, tag)]) } }
      }
      if !lengths[Place.Kind.path.rawValue].isEmpty, RequestKey.isInSearchSpace(key, ofURLsWith: []) {
        compareEach(numbers[Place(RequestKey(storedBytes: key).path).hash(.path)])
      }
    } else {
      for removal in later { compare(with: removal) }
    }
    return effect
  }

  private func has(_ kind: Place.Kind, _ length: Int) -> Bool { lengths[kind.rawValue].contains(length) }

  /// The tags of a response, if there are removals by tag; nil if they are unknown.
  private func tags(_ fields: () -> HeaderFields?) -> Set<ArraySlice<UInt8>>? {
    if tagFieldNames.isEmpty { return [] }
    guard let fields = fields() else { return nil }
    var tags: Set<ArraySlice<UInt8>> = []
    for names in tagFieldNames {
      _ = ResponseTags.contains(fields, in: names) { tag in
        tags.insert(tag)
        return false
      }
    }
    return tags
  }

  /// A set of lengths.
  private struct Lengths {
    private var flags: [Bool] = []
    var isEmpty: Bool { flags.isEmpty }

    mutating func insert(_ length: Int) {
      if length >= flags.count { flags += [Bool](repeating: false, count: length + 1 - flags.count) }
      flags[length] = true
    }

    func contains(_ length: Int) -> Bool { length < flags.count && flags[length] }
  }

  /// A place in the index: the beginning of a key, hashed by FNV-1a, which has a value for each beginning.
  private struct Place {
    enum Kind: Int, CaseIterable {
      /// Keys with this beginning.
      case beginning
      /// Keys in the space of this path.
      case path
      /// Keys of this origin, or of all, of responses with a tag.
      case tag
    }

    private var state: UInt64 = 0xCBF2_9CE4_8422_2325

    init(_ bytes: some Sequence<UInt8> = []) {
      for byte in bytes { append(byte) }
    }

    @inline(__always)
    mutating func append(_ byte: UInt8) { state = (state ^ UInt64(byte)) &* 0x0000_0100_0000_01B3 }

    func hash(_ kind: Kind, _ name: ArraySlice<UInt8> = []) -> UInt64 {
      var place = self
      // No key has the byte 0xFF, which UTF-8 does not contain.
      place.append(0xFF)
      place.append(UInt8(kind.rawValue))
      for byte in name { place.append(byte) }
      return place.state
    }
  }
}
