import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What a `CachedURLResponse` holds beyond status, header fields and body; kept with the record as a property list.
struct ResponseAttachment: Codable, Equatable {
  /// The response's URL, where it is not the key's.
  var url: String?
  var mimeType: String?
  var textEncodingName: String?
  var expectedContentLength: Int?
  /// `userInfo`, as a property list of its own.
  var userInfo: Data?

  /// The attachment, or nil if there is nothing to attach.
  init?(_ cached: CachedURLResponse, keyURL: String) {
    let response = cached.response
    let isHTTP = response is HTTPURLResponse
    let url = response.url?.absoluteString
    self.url = url == keyURL ? nil : url
    if !isHTTP {
      mimeType = response.mimeType
      textEncodingName = response.textEncodingName
      expectedContentLength = Int(response.expectedContentLength)
    }
    userInfo = cached.userInfo.flatMap(Self.propertyList)
    if isHTTP, self.url == nil, userInfo == nil { return nil }
  }

  /// The attachment of a record, or nil if there is none that can be read.
  init?(bytes: [UInt8]?) {
    guard let bytes else { return nil }
    do {
      self = try PropertyListDecoder().decode(ResponseAttachment.self, from: Data(bytes))
    } catch {
      // The bytes passed their checksum, so a newer library wrote them: what it meant is unknown here.
      return nil
    }
  }

  var bytes: [UInt8]? {
    let encoder = PropertyListEncoder()
    encoder.outputFormat = .binary
    do {
      return [UInt8](try encoder.encode(self))
    } catch {
      // Strings, integers and data are always encodable.
      return nil
    }
  }

  /// The keys of `userInfo` that are strings, with values of a property list; other kinds cannot be written down.
  private static func propertyList(_ userInfo: [AnyHashable: Any]) -> Data? {
    let named = Dictionary(
      userInfo.compactMap { key, value in (key.base as? String).map { ($0, value) } }, uniquingKeysWith: { $1 })
    guard !named.isEmpty, PropertyListSerialization.propertyList(named, isValidFor: .binary) else { return nil }
    do {
      return try PropertyListSerialization.data(fromPropertyList: named, format: .binary, options: 0)
    } catch {
      return nil
    }
  }

  var userInfoDictionary: [AnyHashable: Any]? {
    guard let userInfo else { return nil }
    do {
      return try PropertyListSerialization.propertyList(from: userInfo, format: nil) as? [String: Any]
    } catch {
      return nil
    }
  }
}
