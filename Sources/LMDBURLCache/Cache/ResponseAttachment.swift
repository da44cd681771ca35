import CacheModel
import Foundation
import FoundationNetworking
import HTTPCaching

/// The parts of a `CachedURLResponse` other than status, header fields and body.
///
/// They are stored with the record as a property list.
struct ResponseAttachment: Codable, Equatable {
  /// The response's URL if it differs from the key's, without user and password.
  var url: String?
  var mimeType: String?
  var textEncodingName: String?
  var expectedContentLength: Int?
  /// `userInfo` as a separate property list.
  var userInfo: Data?

  /// Creates the attachment; nil if there is nothing to attach.
  init?(_ cached: CachedURLResponse, for key: RequestKey) {
    let response = cached.response
    let isHTTP = response is HTTPURLResponse
    let url = response.url?.textWithoutUserInformation
    self.url = url.map(key.isMade) == true ? nil : url
    if !isHTTP {
      mimeType = response.mimeType
      textEncodingName = response.textEncodingName
      expectedContentLength = Int(response.expectedContentLength)
    }
    userInfo = cached.userInfo.flatMap(Self.propertyList)
    if isHTTP, self.url == nil, userInfo == nil { return nil }
  }

  /// Decodes the attachment of a record; nil if there is none or it cannot be decoded.
  init?(bytes: [UInt8]?) {
    guard let bytes else { return nil }
    // The bytes passed their checksum, so a newer version of the library wrote them. Without an attachment the response
    // is still right: its URL is that of the request, and `userInfo` is missing.
    guard let decoded = try? PropertyListDecoder().decode(Self.self, from: Data(bytes)) else { return nil }
    self = decoded
  }

  var bytes: [UInt8]? {
    let encoder = PropertyListEncoder()
    encoder.outputFormat = .binary
    // Drops no error: strings, integers and data can always be encoded.
    return (try? encoder.encode(self)).map { [UInt8]($0) }
  }

  /// Encodes the entries of `userInfo` whose keys are strings.
  ///
  /// Returns nil if there are none, or if a value is not a property list.
  private static func propertyList(_ userInfo: [AnyHashable: Any]) -> Data? {
    let named = Dictionary(
      userInfo.compactMap { key, value in (key.base as? String).map { ($0, value) } }, uniquingKeysWith: { $1 })
    guard !named.isEmpty, PropertyListSerialization.propertyList(named, isValidFor: .binary) else { return nil }
    // Drops no error: the check above has passed.
    return try? PropertyListSerialization.data(fromPropertyList: named, format: .binary, options: 0)
  }

  var userInfoDictionary: [AnyHashable: Any]? {
    // As in ``init(bytes:)``, a newer version may have written another form, and the response is right without it.
    userInfo.flatMap { try? PropertyListSerialization.propertyList(from: $0, format: nil) as? [String: Any] }
  }
}
