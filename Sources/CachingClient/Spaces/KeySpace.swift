import CacheModel
import FoundationEssentials
public import HTTPCaching

/// Key spaces: sets of cache keys that one removal makes unreachable, although no process knows all of them.
///
/// A space has a small record, which is stored like a response and has a nonce. The keys in the space contain the
/// nonce. So when the record is removed, no process finds the responses in the space again, and they are evicted later.
/// The record is used by each lookup in the space, so it is usually not evicted before them.
///
/// The nonce is from a number of the storage, which changes with each removal (``SpaceRecords``). Two processes that
/// make a record at once make the same one. After a removal the nonce is another one, because the record is stored with
/// the removal token to which its number belongs.
///
/// The first store in a space makes its record; a lookup makes none. The record of a path's space has a nonce for each
/// value of No-Vary-Search that the path's responses have, so that no value hides the responses with another one.
@usableFromInline
package struct KeySpace: Sendable {
  /// The responses that are found in the same way.
  @usableFromInline
  struct Section: Sendable {
    /// A text that no other section has.
    let nonce: String
    /// For the equivalent URLs of a path: which of their parameters count.
    let variation: URLVariation?

    /// Makes a section with a number of the storage.
    init(_ variation: URLVariation?, number: UInt64) {
      var text = variation?.text ?? ""
      let digest = text.withUTF8 { XXHash.digest64(UnsafeRawBufferPointer($0)) }
      nonce = String(variation == nil ? number : number ^ digest, radix: 16)
      self.variation = variation
    }

    init(nonce: String, variation: URLVariation?) { (self.nonce, self.variation) = (nonce, variation) }
  }

  /// The sections, the newest first.
  private(set) var sections: [Section]

  /// The maximum number of values of No-Vary-Search for one path. A response with another one is stored for its own URL
  /// only.
  static let maximumSectionCount = 8

  static let nonceField = "Key-Space-Nonce"
  static let variationField = "Key-Space-Vary"

  /// Makes a space.
  init(_ section: Section) { sections = [section] }

  /// Reads a record; nil if it is not one.
  init?(_ record: HeaderFields) {
    sections = []
    var position = 0
    while let section = Self.nextSection(in: record, &position) { sections.append(section) }
    if sections.isEmpty { return nil }
  }

  /// Reads the section of a record that begins at a position or after it, and moves the position past it.
  ///
  /// A function of its own, because a lookup reads one section after another, and usually there is one.
  @usableFromInline
  static func nextSection(in record: HeaderFields, _ position: inout Int) -> Section? {
    // No other names and no other spellings are stored. Names of 15 bytes at most are compared without a loop.
    while position < record.count {
      let field = record[position]
      position += 1
      guard field.name == nonceField else { continue }
      guard position < record.count, record[position].name == variationField else {
        return Section(nonce: field.value, variation: nil)
      }
      defer { position += 1 }
      return Section(nonce: field.value, variation: URLVariation(text: record[position].value))
    }
    return nil
  }

  /// Reads the first section of a record, the only one in the space of a URL.
  @usableFromInline
  static func firstSection(in record: HeaderFields) -> Section? {
    var position = 0
    return nextSection(in: record, &position)
  }

  /// The section of a variation; nil if there is none.
  func section(of variation: URLVariation?) -> Section? { sections.first { $0.variation == variation } }

  /// Adds a section, unless there are too many.
  mutating func add(_ section: Section) -> Bool {
    guard sections.count < Self.maximumSectionCount else { return false }
    sections.insert(section, at: 0)
    return true
  }

  /// The record, which stays fresh for a year.
  func record(at now: Date, isShared: Bool) -> ProposedResponse {
    var fields = HeaderFields()
    for section in sections {
      fields.append(name: Self.nonceField, value: section.nonce)
      if let variation = section.variation { fields.append(name: Self.variationField, value: variation.text) }
    }
    return ProposedResponse(
      status: 200, fields: fields, body: Data(),
      freshness: FreshnessInfo(
        responseTime: now, initialAge: 0, lifetime: 31_536_000, date: now, staleWhileRevalidate: -1, staleIfError: -1,
        flags: isShared ? [.sharedMode] : []),
      vary: VaryKey(fields: []))
  }
}
