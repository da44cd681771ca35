#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The properties of a response that a caller stores manually, even if RFC 9111 does not allow storing it.
public struct ManualStorage: Sendable, Hashable {
  /// The fields to store (RFC 9111, section 3.1).
  public let fields: HeaderFields
  /// The freshness for later decisions.
  public let freshness: FreshnessInfo
  /// Whether the request or the response has `no-store` (RFC 9111, sections 5.2.1.5 and 5.2.2.5).
  public let forbidsStoring: Bool
  /// Whether the response declares its lifetime for this cache, or has `no-cache`.
  public let hasExplicitLifetime: Bool

  /// Evaluates the response to `request`, received at `responseTime`.
  public init(request: RequestHead, response: ResponseHead, responseTime: Date, options: CachingOptions) {
    let directives = ResponseDirectives(response.fields, targetedFieldNames: options.targetedFieldNames)
    (fields, freshness) = Storability.storedParts(
      request: request, response: response, directives: directives, requestTime: responseTime,
      responseTime: responseTime, options: options)
    forbidsStoring = Self.forbidsStoring(request: request, status: response.status, directives: directives)
    hasExplicitLifetime = directives.noCache || Storability.hasLifetime(response, directives, options)
  }

  /// Computes only ``forbidsStoring``, at a fraction of the cost.
  public static func forbidsStoring(request: RequestHead, response: ResponseHead, options: CachingOptions) -> Bool {
    forbidsStoring(
      request: request, status: response.status,
      directives: ResponseDirectives(response.fields, targetedFieldNames: options.targetedFieldNames))
  }

  private static func forbidsStoring(request: RequestHead, status: Int, directives: ResponseDirectives) -> Bool {
    // 5.2.2.3: must-understand overrides no-store if the status is understood.
    let isOverridden = directives.overridesNoStore && Freshness.understands(status)
    return (directives.noStore && !isOverridden) || RequestDirectives(request.fields).noStore
  }
}
